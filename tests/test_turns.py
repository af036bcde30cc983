# SPDX-License-Identifier: Apache-2.0
"""Threads that compile at once do not write into each other's functions."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.te.tag import TagScope

import sparsetrain as st


@I.ir_module
class Exponential:
    """exp(x)."""

    @R.function
    def main(x: R.Tensor(("B",), "float32")) -> R.Tensor(("B",), "float32"):
        with R.dataflow():
            y = R.exp(x)
            R.output(y)
        return y


def test_operators_are_lowered_by_one_thread_at_a_time(place, monkeypatch):
    """TVM has one tag for all threads; while it is set, the others get time to meet it.

    Before Python 3.12 they do not: `cached_property` lets one thread in at a time.
    """
    enter = TagScope.__enter__

    def slow(scope: TagScope) -> TagScope:
        entered = enter(scope)
        time.sleep(0.05)
        return entered

    monkeypatch.setattr(TagScope, "__enter__", slow)

    def run(number: int) -> float:
        program = st.Program(Exponential, "main", "llvm")
        return program({}, {"x": np.array([number], "f4")}).numpy().item()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, range(4)))
    np.testing.assert_allclose(found, np.exp(range(4)), rtol=1e-6)
