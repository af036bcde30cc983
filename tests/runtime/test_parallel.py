# SPDX-License-Identifier: Apache-2.0
"""Parallel tasks: order, errors, contexts, and threads that end."""

import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
import tvm

from sparsetrain.runtime import threads
from sparsetrain.runtime.object_files import run_parallel

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})


@pytest.fixture(autouse=True, params=[1, 4])
def cores(request, monkeypatch):
    """Whether there are threads or none, everything else is the same."""
    monkeypatch.setattr(threads, "max_worker_threads", lambda: request.param)
    return request.param


def late(number: int) -> int:
    """The later ones are through first."""
    time.sleep(0.02 * (3 - number))
    return number


def test_results_come_in_order_and_no_thread_is_left():
    before = threading.active_count()
    assert run_parallel([partial(late, number) for number in range(4)]) == [0, 1, 2, 3]
    assert run_parallel([]) == []
    assert threading.active_count() == before


def test_works_run_at_once_where_there_are_cores(cores):
    used = run_parallel([lambda: late(0) or threading.get_ident() for _ in range(4)])
    assert (len(set(used)) > 1) == (cores > 1)
    assert len(set(run_parallel([threading.get_ident] * 4, most=1))) == 1


def test_the_first_error_is_told_and_what_was_not_begun_is_left_out(cores):
    begun = []

    def failing(number: int) -> None:
        begun.append(number)
        late(0)
        raise ValueError(number)

    with pytest.raises(ValueError, match="^0$"):
        run_parallel([partial(failing, number) for number in range(20)])
    assert len(begun) <= 2 * cores


# A thread that outlives the main one may still compile: Python gives pools no threads then.
LATE = """
import threading
from sparsetrain.runtime import threads
from sparsetrain.runtime.object_files import run_parallel
threads.max_worker_threads = lambda: 4
def work():
    threading.main_thread().join()
    print(run_parallel([lambda: 1, lambda: 2]))
threading.Thread(target=work).start()
"""


def test_without_threads_to_be_had_the_caller_does_the_work(cores, monkeypatch):
    if cores > 1:
        late = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True)
        assert (late.stdout, late.stderr) == ("[1, 2]\n", "")

    def fail(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    assert run_parallel([lambda: 1, lambda: 2]) == [1, 2]


# What passes and code are made by on a thread, as the caller has it.
SEEN = {
    "config": lambda: dict(tvm.transform.PassContext.current().config),
    "level": lambda: tvm.transform.PassContext.current().opt_level,
    "disabled": lambda: list(tvm.transform.PassContext.current().disabled_pass),
    "required": lambda: list(tvm.transform.PassContext.current().required_pass),
    "target": lambda: str(tvm.target.Target.current(allow_none=True)),
    "errors of NumPy": np.geterr,
}


@pytest.mark.parametrize("what", SEEN)
def test_what_the_caller_set_holds_on_every_thread(what):
    config = {"tirx.disable_vectorize": True}
    context = tvm.transform.PassContext(3, ["Required"], ["Disabled"], config=config)
    default = SEEN[what]()
    with context, TARGET, np.errstate(over="raise"):
        here = SEEN[what]()
        assert run_parallel([SEEN[what]] * 4) == [here] * 4
    assert here != default
    assert run_parallel([SEEN[what]] * 4) == [default] * 4


def test_an_instrument_sees_one_pass_after_the_other():
    seen = []

    @tvm.instrument.pass_instrument
    class Noting:
        def run_before_pass(self, module, info):
            seen.append(threading.get_ident())

    def simplify() -> None:
        tvm.relax.transform.ToNonDataflow()(tvm.IRModule())

    with tvm.transform.PassContext(instruments=[Noting()]):
        run_parallel([simplify] * 4)
    assert seen == [threading.get_ident()] * 4
