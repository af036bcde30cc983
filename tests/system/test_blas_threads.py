# SPDX-License-Identifier: Apache-2.0
"""NumPy's BLAS has one thread while a model is trained, and its own number after."""

import sys

import numpy as np
import pytest

from sparsetrain.system.blas_threads import other_pools, single_threaded_blas
from tests import small_dlrm

threadpoolctl = pytest.importorskip("threadpoolctl")


def blas_threads() -> list[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    pools = threadpoolctl.threadpool_info()
    return [pool["num_threads"] for pool in pools if pool["user_api"] == "blas"]


def test_blas_has_one_thread_in_fit_and_its_own_number_after():
    seen = []

    def batches():
        for seed in range(2):
            seen.append(blas_threads())
            yield small_dlrm.batch(5, seed=seed)

    before = blas_threads()
    small_dlrm.trainer("single").fit(batches(), progress=None)
    assert seen and all(threads == [1] * len(before) for threads in seen)
    assert blas_threads() == before


def test_an_error_gives_the_threads_back():
    before = blas_threads()
    with pytest.raises(KeyError), single_threaded_blas():
        raise KeyError
    assert blas_threads() == before


def test_without_threadpoolctl_nothing_is_limited(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    with single_threaded_blas():
        assert other_pools() is None
