# SPDX-License-Identifier: Apache-2.0
"""Threads that compile, predict or fork at once wait for each other."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.te.tag import TagScope

import sparsetrain as st
from sparsetrain import runtime
from sparsetrain.compiler import program_cache
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.host import host_target
from sparsetrain.system import locks
from sparsetrain.system.locks import new_lock
from sparsetrain.tables.table import Table
from tests import small_dlrm


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


TARGET = host_target()
# What lowers operators. `Program` does both, but before Python 3.12 its `cached_property` lets one
# thread in at a time.
LOWERED = {
    "its digest": lambda: program_cache.digest(Exponential, TARGET),
    "its code": lambda: build_relax(Exponential, TARGET)["main"](ONES).numpy().item(),
    "a program": lambda: st.Program(Exponential, "main", "llvm")({}, {"x": ONES}).numpy().item(),
}
ONES = runtime.as_tensor(np.ones(1, "f4"))


@pytest.mark.parametrize("what", LOWERED)
def test_operators_are_lowered_by_one_thread_at_a_time(place, slow_tags, what):
    make = LOWERED[what]
    with ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(make) for _ in range(4)]]
    assert found == [make()] * 4


def at_once(*calls):
    """Make calls from a thread each, and return what they return."""
    ready = threading.Barrier(len(calls))

    def call(one):
        ready.wait(20)
        return one()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(60) for future in [pool.submit(call, one) for one in calls]]


# All that reads or writes every row; in exact mode they are made current first.
USES = {
    "predict": lambda trainer, place: trainer.predict([small_dlrm.batch(16, 99)]),
    "evaluate": lambda trainer, place: trainer.evaluate([small_dlrm.batch(16, 99)]),
    "state_dict": lambda trainer, place: trainer.state_dict(),
    "table": lambda trainer, place: trainer.table("C1"),
    "save": lambda trainer, place: trainer.save(place / f"{threading.get_ident()}"),
    "quantized": lambda trainer, place: trainer.quantized(),
}


@pytest.mark.parametrize("what", USES)
def test_rows_of_exact_mode_are_made_current_by_one_thread(tmp_path, monkeypatch, what):
    behind, expected = (
        small_dlrm.trainer(optimizer=st.optim.adam(0.01, mode="exact")) for _ in range(2)
    )
    for trainer in (behind, expected):
        for seed in range(5):
            trainer.step(small_dlrm.batch(8, seed))
    replay = Table.replay

    def slow(*arguments):
        time.sleep(0.05)  # the others may begin meanwhile
        return replay(*arguments)

    monkeypatch.setattr(Table, "replay", slow)
    at_once(*[lambda: USES[what](behind, tmp_path)] * 3)
    small_dlrm.assert_same_state(behind.state_dict(), expected.state_dict())


def test_steps_of_threads_follow_one_another(monkeypatch):
    trainer, expected = (small_dlrm.trainer(optimizer=st.optim.adam(0.01)) for _ in range(2))
    batch, take = small_dlrm.batch(32), trainer.training_step.run_
    running = []

    def slow(*arguments):
        running.append(1)
        time.sleep(0.02)
        assert running == [1]
        taken = take(*arguments)
        running.pop()
        return taken

    monkeypatch.setattr(trainer.training_step, "run_", slow)
    at_once(*[lambda: [trainer.step(batch) for _ in range(3)]] * 3)
    for _ in range(9):
        expected.step(batch)
    assert trainer.steps == 9
    small_dlrm.assert_same_state(trainer.state_dict(), expected.state_dict())


def test_a_lock_is_of_one_thread_which_may_take_it_again():
    lock, order = new_lock(), []

    def second():
        with lock:
            order.append("second")

    thread = threading.Thread(target=second)
    with lock, lock:
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def run_beside_a_fork(work):
    """Fork, in name only, once `work` of a thread has set the event that it is given."""
    began, over = threading.Event(), []
    thread = threading.Thread(target=lambda: (work(began), over.append(True)))
    thread.start()
    began.wait(20)
    locks._acquire_all()
    seen = list(over)
    locks._release_all()
    thread.join()
    return seen


def test_a_fork_that_waits_lets_a_thread_with_a_lock_take_others():
    outer, inner = new_lock(), new_lock()

    def work(began):
        with outer:
            began.set()
            time.sleep(0.1)
            with inner:
                pass

    assert run_beside_a_fork(work)


def test_a_thread_that_waits_for_a_fork_leaves_the_lock_to_others(monkeypatch):
    monkeypatch.setattr(locks, "MAX_FORK_WAIT", 5.0)
    outer, inner = new_lock(), new_lock()

    def take_inner():
        with inner:
            pass

    late = threading.Thread(target=take_inner)

    def work(began):
        with outer:
            began.set()
            time.sleep(0.05)  # until the fork waits
            late.start()
            time.sleep(0.05)
            take_inner()

    assert run_beside_a_fork(work)
    late.join()


def test_a_fork_waits_for_so_long_and_no_longer(monkeypatch):
    monkeypatch.setattr(locks, "MAX_FORK_WAIT", 0.05)
    lock, over, began = new_lock(), threading.Event(), threading.Event()

    def work():
        with lock:
            began.set()
            over.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    began.wait(20)
    child = os.fork()
    if child == 0:
        with lock:  # whose thread is not there
            os._exit(0)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_threads_may_fork_at_once():
    locks_of_objects, ends = [new_lock() for _ in range(20)], []

    def fork():
        for _ in range(6):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                for lock in locks_of_objects:
                    with lock:
                        pass
                os._exit(0)
            ends.append(os.waitpid(child, 0)[1])

    at_once(fork, fork, fork)
    assert ends == [0] * 18


# A process forks while threads predict; the children predict as well.
FORK = """
import os, sys, threading
import sparsetrain as st
from tests import small_dlrm
trainer, batch = small_dlrm.trainer(), small_dlrm.batch(256)
expected, over = trainer.predict([batch]).tobytes(), threading.Event()
def serve():
    while not over.is_set():
        trainer.predict([batch])
threads = [threading.Thread(target=serve) for _ in range(2)]
for thread in threads:
    thread.start()
ends = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        os._exit(trainer.predict([batch]).tobytes() != expected)
    ends.append(os.waitpid(child, 0)[1])
over.set()
for thread in threads:
    thread.join()
print(ends == [0] * 10)
"""


def test_a_process_that_was_forked_beside_threads_that_predict_can_predict():
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.stdout.strip(), done.returncode) == ("True", 0), done.stderr
