# SPDX-License-Identifier: Apache-2.0
"""Threads that compile at once do not write into each other's functions."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.te.tag import TagScope

import sparsetrain as st
from sparsetrain import cache, runtime


@I.ir_module
class Exponential:
    """exp(x)."""

    @R.function
    def main(x: R.Tensor(("B",), "float32")) -> R.Tensor(("B",), "float32"):
        with R.dataflow():
            y = R.exp(x)
            R.output(y)
        return y


@pytest.fixture
def slow_tags(monkeypatch):
    """TVM has one tag for all threads; while it is set, the others get time to meet it."""
    enter = TagScope.__enter__

    def slow(scope: TagScope) -> TagScope:
        entered = enter(scope)
        time.sleep(0.05)
        return entered

    monkeypatch.setattr(TagScope, "__enter__", slow)


TARGET = runtime.host_target()
# What lowers operators. `Program` does both, but before Python 3.12 its `cached_property` lets one
# thread in at a time.
LOWERED = {
    "its digest": lambda: cache.digest(Exponential, TARGET),
    "its code": lambda: runtime.build_relax(Exponential, TARGET)["main"](ONES).numpy().item(),
    "a program": lambda: st.Program(Exponential, "main", "llvm")({}, {"x": ONES}).numpy().item(),
}
ONES = runtime.as_tensor(np.ones(1, "f4"))


@pytest.mark.parametrize("what", LOWERED)
def test_operators_are_lowered_by_one_thread_at_a_time(place, slow_tags, what):
    make = LOWERED[what]
    with ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(make) for _ in range(4)]]
    assert found == [make()] * 4
