# SPDX-License-Identifier: Apache-2.0
"""Commands without standard streams, and results that replace what links lead to."""

import errno
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.cli.output_files import replace_file
from sparsetrain.errors import DataError, ResourceError


def run(closed: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run a command by a shell that closes streams, as `>&- 2>&-` does."""
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-m", "sparsetrain"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True)


FURTHER = [pytest.param(c, marks=pytest.mark.slow) for c in ("<&-", ">&-", "2>&-", ">&- 2>&-")]
CLOSED = ["<&- >&- 2>&-", *FURTHER]


@pytest.mark.parametrize("closed", CLOSED)
def test_closed_streams_change_no_result(closed, tmp_path):
    rows = {"label": [0, 1] * 20, "I1": range(40), "C1": [f"{n % 5:08x}" for n in range(40)]}
    pq.write_table(
        pa.table({name: [*values] for name, values in rows.items()}), tmp_path / "a.parquet"
    )
    raw, out = str(tmp_path / "a.parquet"), tmp_path / "out"
    done = run(closed, "convert", raw, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert pq.read_table(out / "part-00000.parquet").num_rows == 40
    assert ("40 rows" in done.stdout) == (" >&-" not in f" {closed}")
    assert ("writing 100%" in done.stderr) == ("2>&-" not in closed)
    assert run(closed, "convert", "no.csv", "--out", str(tmp_path / "no")).returncode == 3


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is Linux's")
def test_the_exit_code_is_the_same_where_standard_error_takes_no_more():
    assert run("2>/dev/full", "convert", "no.csv", "--out", "no").returncode == 3


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path):
    target, link = tmp_path / "results" / "a.csv", tmp_path / "latest.csv"
    target.parent.mkdir()
    link.symlink_to(target)
    for text in ("first", "second"):
        with replace_file(link) as draft:
            draft.write_text(text)
        assert link.is_symlink() and target.read_text() == text
    assert os.listdir(target.parent) == ["a.csv"]


WRITES = """
import sys, time
from pathlib import Path
from sparsetrain.cli.output_files import replace_file
from sparsetrain.errors import DataError, ResourceError
with replace_file(Path(sys.argv[1])):
    print("began", flush=True)
    time.sleep(100)
"""


def test_what_a_killed_process_left_is_removed_and_what_is_being_written_stays(tmp_path):
    out, other = tmp_path / "a.csv", tmp_path / ".a.notes.csv"
    other.touch()
    child = subprocess.Popen([sys.executable, "-c", WRITES, str(out)], stdout=subprocess.PIPE)
    child.stdout.readline()
    (left,) = set(tmp_path.iterdir()) - {other}
    for ended in (False, True):
        if ended:
            child.kill()
            child.communicate()
        with replace_file(out) as draft:
            draft.touch()
        assert left.exists() != ended
    assert set(tmp_path.iterdir()) == {out, other}


@pytest.mark.parametrize("number, kind", [(errno.ENOSPC, ResourceError), (errno.EACCES, DataError)])
def test_an_error_of_the_system_names_the_file_that_was_asked_for(tmp_path, number, kind):
    out = tmp_path / "a.csv"
    out.write_text("before")
    said = rf"a\.csv: cannot be written: {os.strerror(number)}$"
    with pytest.raises(kind, match=said), replace_file(out):
        raise OSError(number, "Error writing bytes to file")
    assert os.listdir(tmp_path) == ["a.csv"] and out.read_text() == "before"
