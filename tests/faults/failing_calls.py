# SPDX-License-Identifier: Apache-2.0
"""Make the n-th open, write, fsync or rename of a task fail, for all n, and look what is left.

The calls are those of the C library, below Python and Arrow: `build` compiles a small library that
is preloaded. After each failure: the error is ours or the system's own, what is on the disk is
whole, and the same task, done again, gives what it would have given.

    python -m tests.faults.failing_calls save resume convert
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

LIBRARY = "failing_calls.so"
STRIDE = [1]
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES)


def build(folder: Path) -> Path:
    """Compile the library that is preloaded."""
    source = Path(__file__).with_name("failing_calls.c")
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None
    out = folder / LIBRARY
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", out, source, "-ldl"], check=True)
    return out


def run(tasks: list[str], stride: int = 1) -> subprocess.CompletedProcess:
    """Run this file with the library preloaded."""
    with tempfile.TemporaryDirectory() as place:
        env = {**os.environ, "LD_PRELOAD": str(build(Path(place)))}
        command = [sys.executable, "-m", __spec__.name, "--preloaded", str(stride), *tasks]
        root = Path(__file__).parents[2]
        return subprocess.run(command, env=env, cwd=root, capture_output=True, text=True)


def every_call(
    library: ctypes.CDLL, folder: Path, task: Callable[[], None], check: Callable[[str], None]
) -> Counter:
    """Let call 1, 2, ... of `task` fail until it makes fewer; `check` what is left each time.

    Returns
    -------
    Counter
        How often each call failed.
    """
    failed: Counter = Counter()
    number = 1
    while True:
        library.arm(os.fsencode(folder), number, ERRORS[number % len(ERRORS)])
        outcome = "done"
        try:
            task()
        except Exception as error:
            outcome = _told(error)
        library.disarm()
        which = library.which().decode()
        if not which:
            return failed
        failed[which] += 1
        check(f"{which} {number}: {outcome}")
        # Uneven steps: a task repeats its calls, and even ones could always meet the same call.
        number += STRIDE[0] + (failed.total() % 3 - 1 if STRIDE[0] > 2 else 0)


def _told(error: Exception) -> str:
    """Return the message; anything but an error for people is a failure of the test."""
    from sparsetrain.cli.app import explain

    code, message = explain(error)
    assert code in (2, 3, 4, 6), f"{type(error).__name__}: {error}"
    return message


def tree(folder: Path) -> dict[str, str]:
    """Return a hash of each file, by its name in the folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _save(library: ctypes.CDLL, place: Path) -> Counter:
    """A save over an older one leaves the old or the new one."""
    import sparsetrain as st
    from tests import small_dlrm

    old, new = small_dlrm.trainer(seed=1), small_dlrm.trainer(seed=2)
    known = {}
    for name, trainer in {"old": old, "new": new}.items():
        trainer.save(place / name)
        known[name] = tree(place / name)
    old.save(place / "run")

    def check(said: str) -> None:
        assert tree(place / "run") in known.values(), said
        st.load(place / "run")
        # The one before stays beside it if the new name may not be on the disk.
        assert {p.name for p in place.glob(".*")} <= {".run.old"}, said
        old.save(place / "run")
        assert tree(place / "run") == known["old"] and not list(place.glob(".*")), said

    failed = every_call(library, place, lambda: new.save(place / "run"), check)
    assert tree(place / "run") == known["new"]
    return failed


def _write_rows(place: Path) -> str:
    """Write a file of raw rows, and return its path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tests import small_dlrm

    path = str(place / "train.parquet")
    pq.write_table(pa.table(small_dlrm.raw_rows(60)), path)
    return path


def _resume(library: ctypes.CDLL, place: Path) -> Counter:
    """A resumed run that fails anywhere can be resumed again, to the bits of the uncut one."""
    import sparsetrain as st
    from tests import small_dlrm

    data = _write_rows(place)
    options = {"epochs": 1, "batch_size": 16, "progress": None}

    def go_on() -> dict:
        trainer = small_dlrm.share_programs(st.load(place / "run"))
        run = st.Run(place / "run", every=2, log_every=2)
        trainer.fit(data, run=run, resume=True, **options)
        return {name: array.tobytes() for name, array in trainer.state_dict().items()}

    first = small_dlrm.trainer(encoder=small_dlrm.encoder(), seed=3)
    run = st.Run(place / "cut", every=2, log_every=2)
    first.fit(data, run=run, stop=lambda: first.steps == 1, **options)
    shutil.copytree(place / "cut", place / "run")
    expected = go_on()

    def check(said: str) -> None:
        assert go_on() == expected, said
        shutil.rmtree(place / "run")
        shutil.copytree(place / "cut", place / "run")

    shutil.rmtree(place / "run")
    shutil.copytree(place / "cut", place / "run")
    return every_call(library, place / "run", go_on, check)


def _convert(library: ctypes.CDLL, place: Path) -> Counter:
    """A conversion that fails anywhere goes on, to the bytes of the uncut one."""
    import sparsetrain as st

    data = _write_rows(place)

    def convert() -> None:
        st.data.convert_files(data, place / "out", min_count=1)

    convert()
    expected = tree(place / "out")
    shutil.rmtree(place / "out")

    def check(said: str) -> None:
        convert()
        assert tree(place / "out") == expected, said
        shutil.rmtree(place / "out")

    return every_call(library, place / "out", convert, check)


def _whole_or_absent(
    library: ctypes.CDLL, place: Path, name: str, make: Callable[[Path], None]
) -> Counter:
    """A folder that is made is whole or not there, whatever fails, and nothing lies beside it."""
    folder = place / name
    folder.mkdir()
    make(place / "whole")
    expected = tree(place / "whole")

    def check(said: str) -> None:
        assert not [*folder.iterdir()] or tree(folder / "out") == expected, said
        shutil.rmtree(folder / "out", ignore_errors=True)

    def remake() -> None:
        shutil.rmtree(folder / "out", ignore_errors=True)
        make(folder / "out")

    failed = every_call(library, folder, remake, check)
    assert tree(folder / "out") == expected and [*folder.iterdir()] == [folder / "out"]
    return failed


def _export(library: ctypes.CDLL, place: Path) -> Counter:
    from sparsetrain.serving.export import export
    from tests.serving import logs

    trainer = logs.trained(logs.SCHEMA)
    return _whole_or_absent(
        library, place, "exports", lambda out: export(trainer, out, cpu="native")
    )


def _apply(library: ctypes.CDLL, place: Path) -> Counter:
    """The same of a delta, and of what is made by it."""
    from sparsetrain.serving.delta import apply, write_delta
    from sparsetrain.serving.export import export
    from tests.serving import logs

    trainer = logs.trained(logs.SCHEMA)
    older, newer, delta = place / "older", place / "newer", place / "delta"
    export(trainer, older, cpu="native")
    export(logs.day_after(trainer, logs.SCHEMA), newer, cpu="native")
    write_delta(older, newer, delta)
    failed = _whole_or_absent(library, place, "deltas", lambda out: write_delta(older, newer, out))
    shutil.rmtree(place / "whole")
    return failed + _whole_or_absent(library, place, "made", lambda out: apply(older, delta, out))


TASKS = {
    "save": _save,
    "resume": _resume,
    "convert": _convert,
    "export": _export,
    "apply": _apply,
}


def main(tasks: list[str]) -> None:
    """Run tasks; print a line of JSON for each."""
    library = ctypes.CDLL(None)
    library.arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
    library.which.restype = ctypes.c_char_p
    for name in tasks:
        with tempfile.TemporaryDirectory() as place:
            failed = TASKS[name](library, Path(place).resolve())
        print(json.dumps({"task": name, "failed": dict(sorted(failed.items()))}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--preloaded":
        STRIDE[0] = int(sys.argv[2])
        main(sys.argv[3:])
    else:
        done = run(sys.argv[1:])
        print(done.stdout, done.stderr[-6000:], sep="")
        sys.exit(done.returncode)
