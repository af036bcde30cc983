# SPDX-License-Identifier: Apache-2.0
"""How many threads kernels run on: sensible without a setting, and what the user says."""

import os
import subprocess
import sys

import pytest

from sparsetrain.runtime import available_cores

# A pool cannot be undone, so each case is a process: what it says, and what it says it runs on.
SAY = """
import sparsetrain as st
{calls}
print(st.runtime.num_threads())
"""


def threads(calls: str, **environ: str) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if name != "TVM_NUM_THREADS"}
    return subprocess.run(
        [sys.executable, "-c", SAY.format(calls=calls)],
        env=clean | environ,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("calls", "environ", "expected"),
    [
        ("", {}, available_cores()),
        ("", {"TVM_NUM_THREADS": "1"}, 1),
        ("st.set_num_threads(1)", {}, 1),
        ("st.set_num_threads(3)", {}, 3),
        ("st.set_num_threads(3)\nst.set_num_threads(2)", {}, 2),
        ("st.set_num_threads(2)", {"TVM_NUM_THREADS": "1"}, 2),
    ],
    ids=["default", "environment", "one", "more than cores", "fewer later", "setting wins"],
)
def test_threads_are_those_asked_for(calls, environ, expected):
    assert threads(calls, **environ).stdout.strip() == str(expected)


@pytest.mark.skipif(available_cores() < 2, reason="needs two cores")
def test_a_pool_that_runs_cannot_grow_and_says_so():
    result = threads("st.set_num_threads(1)\nst.set_num_threads(2)")
    assert "TVM's pool cannot grow to 2" in result.stderr


def test_no_threads_are_refused():
    assert "set_num_threads: 0 is below 1" in threads("st.set_num_threads(0)").stderr
