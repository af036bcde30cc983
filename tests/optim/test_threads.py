# SPDX-License-Identifier: Apache-2.0
"""The number of threads decides the speed, not the bits."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_one_two_and_three_threads_give_the_same_bits():
    result = subprocess.run(
        [sys.executable, "-m", "tests.optim.digest", "1", "2", "3"],
        env=os.environ | {"TVM_NUM_THREADS": "3", "TVM_THREAD_POOL_SPIN_COUNT": "0"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    used, digests = zip(*(line.split() for line in result.stdout.splitlines()), strict=True)
    assert used == ("1", "2", "3")
    assert len(set(digests)) == 1
