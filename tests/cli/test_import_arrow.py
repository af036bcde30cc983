# SPDX-License-Identifier: Apache-2.0
"""A command's own process has Arrow with the system's memory, and neither pandas nor SciPy."""

import os
import subprocess
import sys

import pyarrow as pa

COMMAND = """
import atexit, sys
from sparsetrain.cli import run_and_exit

def loaded():
    import pyarrow
    heavy = {"pandas", "scipy", "torch"} & sys.modules.keys()
    print("loaded:", pyarrow.default_memory_pool().backend_name, *sorted(heavy))

atexit.register(loaded)
sys.argv = ["sparsetrain", *sys.argv[1:]]
run_and_exit()
"""


def run(*arguments, **environment) -> str:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].removeprefix("loaded: ")


def test_a_small_training_loads_neither_pandas_nor_scipy(tmp_path):
    rows, out = tmp_path / "rows.parquet", tmp_path / "run"
    assert run("generate", rows, "--rows", 300) == "system"
    assert run("train", rows, "--model", "lr", "--valid", rows, "--out", out) == "system"
    assert run("evaluate", out, rows) == "system"


def test_the_pool_that_the_environment_names_is_kept(tmp_path):
    other = {"ARROW_DEFAULT_MEMORY_POOL": pa.supported_memory_backends()[0]}
    assert [run("generate", tmp_path / "rows.tsv", "--rows", 10, **other)] == [*other.values()]


def test_conversions_to_pandas_find_it_still():
    script = "from sparsetrain.cli.import_arrow import import_arrow; import_arrow(); "
    script += "import pyarrow as pa; frame = pa.table({'a': ['x', None]}).to_pandas(); "
    script += "print(pa.Table.from_pandas(frame).column('a').null_count)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr
