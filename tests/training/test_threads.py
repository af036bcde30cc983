# SPDX-License-Identifier: Apache-2.0
"""Threads of kernels: a sensible number by default, the user's if set."""

import os
import subprocess
import sys
from collections.abc import Iterable

import pytest

from sparsetrain.system.cores import available_cores
from tests.helpers import slow_except

# A pool cannot be undone, so each case is a process: a fork of one that has imported the package
# and run nothing. It prints how many threads there are, or why there are not as many as asked for.
SAY = """
import os, sys
import sparsetrain as st
from sparsetrain.system.cores import available_cores
st.runtime  # imports TVM
for calls in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            for count in calls.split():
                st.set_num_threads(int(count))
            print(st.runtime.num_threads())
        except st.errors.ConfigError as error:
            print(error)
            told = os.environ.get("TVM_NUM_THREADS", available_cores())  # to processes it starts
            assert int(told) == st.runtime.num_threads()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
# The environment -> what is asked for by calls, one after another -> what is said.
CORES = available_cores()
CASES = {
    None: {
        "": CORES,
        "1": 1,
        "3": 3,
        "3 2": 2,
        "0": "set_num_threads: count is 0; it must be 1 or more",
        "4097": "set_num_threads: count is 4,097; it must be 4,096 or less",
        str(2**70): f"set_num_threads: count is {2**70:,}; it must be 4,096 or less",
    },
    "1": {"": 1, "2": 2},
}
if CORES > 1:
    CASES[None]["1 2"] = (
        "set_num_threads: kernels already run on 1 threads, and TVM's pool cannot grow to 2: "
        "call it before the first kernel, or set TVM_NUM_THREADS"
    )


def said(setting: str | None, calls: Iterable[str]) -> list[str]:
    """What a process says after each series of calls, started with `setting` as TVM_NUM_THREADS."""
    clean = {name: value for name, value in os.environ.items() if name != "TVM_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", SAY, *calls],
        env=clean | ({} if setting is None else {"TVM_NUM_THREADS": setting}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("setting", slow_except([None], CASES))
def test_threads_are_those_asked_for(setting):
    assert said(setting, CASES[setting]) == [str(expected) for expected in CASES[setting].values()]


@pytest.mark.parametrize("setting", ["abc", pytest.param("4097", marks=pytest.mark.slow)])
def test_a_setting_that_is_no_number_of_threads_is_refused_by_name(setting):
    done = subprocess.run(
        [sys.executable, "-m", "sparsetrain", "doctor"],
        env=os.environ | {"TVM_NUM_THREADS": setting},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 6  # something that is needed does not work
    said = [line for line in done.stdout.splitlines() if "TVM_NUM_THREADS" in line]
    assert f"environment variable TVM_NUM_THREADS: '{setting}' is not a number from 1" in said[0]


@pytest.mark.slow
def test_an_empty_setting_is_none():
    assert said("", [""]) == [str(CORES)]


# What a process that has imported TVM starts as joblib does, by `os.environ` and its own variables.
WORKER = """
import os, subprocess, sys
import sparsetrain as st
print(st.runtime.num_threads())
say = [sys.executable, "-c", "import sparsetrain as st; print(st.runtime.num_threads())"]
for extra in ({}, {"TORCHELASTIC_RUN_ID": "0"}):
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **extra}
    print(subprocess.check_output(say, env=environ, text=True))
"""


def test_a_worker_of_joblib_has_its_share_of_the_cores():
    own = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID")
    clean = {name: value for name, value in os.environ.items() if name not in own}
    command = [sys.executable, "-c", WORKER]
    done = subprocess.run(command, env=clean, capture_output=True, text=True)
    assert [int(line) for line in done.stdout.split()] == [CORES, 1, CORES], done.stderr


# An exported model runs on one thread, and is opened here by a process that trains.
SERVING = """
import sparsetrain as st
st.runtime
from sparsetrain.serving.model import _loaded
try:
    _loaded("absent.so")
except st.errors.CheckpointError:
    print(st.runtime.num_threads())
"""


def test_an_exported_model_leaves_the_threads_of_a_training_process_alone():
    clean = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    command = [sys.executable, "-c", SERVING]
    done = subprocess.run(command, env=clean, capture_output=True, text=True)
    assert done.stdout.split() == [str(CORES)], done.stderr


# A process that has run kernels on two threads, and one that was forked from it.
FORK = """
import os
import numpy as np
import sparsetrain as st
tensor = st.RowSparse.from_numpy(np.arange(200_000) % 1000, np.ones((200_000, 8), "float32"), 1000)
def total():
    return st.runtime.as_numpy(tensor.coalesce().values).tobytes()
before, threads = total(), st.runtime.num_threads()
child = os.fork()
if child == 0:
    try:
        st.set_num_threads(2)
    except st.errors.ConfigError as error:
        print(error)
    print(total() == before, st.runtime.num_threads(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(total() == before, st.runtime.num_threads() == threads)
"""


def test_a_forked_process_runs_kernels_on_one_thread_to_the_same_bits():
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        env=os.environ | {"TVM_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    refusal, child, parent = done.stdout.splitlines()
    assert "this process was forked from one that has TVM's threads" in refusal
    assert (child, parent) == ("True 1", "True True")
