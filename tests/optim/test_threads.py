# SPDX-License-Identifier: Apache-2.0
"""Threads decide the speed, not the bits."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.runtime import as_numpy, as_tensor
from tests.helpers import slow_except

ROOT = Path(__file__).parents[2]


def test_loops_in_many_threads_build_their_updates_at_once():
    together = threading.Barrier(8)

    def train(seed: int) -> np.ndarray:
        params = {"w": as_tensor(np.ones((40, 3 + seed % 4), "f4"))}
        optimizer = st.optim.sgd(0.5)
        state = optimizer.init(params)
        together.wait()
        optimizer.apply_(params, {"w": params["w"]}, state)
        return as_numpy(params["w"])

    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            assert all((found == 0.5).all() for found in pool.map(train, range(8)))


@pytest.mark.parametrize("which", slow_except(["few"], ["few", "all"]))
def test_one_two_and_three_threads_give_the_same_bits(which):
    result = subprocess.run(
        [sys.executable, "-m", "tests.optim.digest", which, "1", "2", "3"],
        env=os.environ | {"TVM_NUM_THREADS": "3", "TVM_THREAD_POOL_SPIN_COUNT": "0"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    used, digests = zip(*(line.split() for line in result.stdout.splitlines()), strict=True)
    assert used == ("1", "2", "3")
    assert len(set(digests)) == 1
