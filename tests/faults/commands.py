# SPDX-License-Identifier: Apache-2.0
"""Commands on a small folder of data and a run, faults of a file, and what came of a command."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.cli import main as command_line
from sparsetrain.errors import ConfigError
from sparsetrain.serving.libraries import compiler

SCHEMA = 'label = "label"\ndense = ["price"]\ncategories = ["item"]\n'
SETTINGS = """[model]
dim = 2
bottom = [2]
top = [2]
[train]
batch_size = 16
checkpoint_every = 2
keep = 1
log_every = 2
[data]
min_count = 1
"""
# Command -> its arguments, {} being the folder, and the files that it reads.
RUN = ("run/LATEST", "run/*/manifest.json", "run/*/000.npy", "run/*/004.npy")
DATA = ("rows.parquet", "log.toml")
CONVERTED = ("converted/*.parquet", "converted/dataset.json")
EXPORTED = ("exported/manifest.txt", "exported/004.bin", "exported/model.so", "exported/values.bin")
DELTA = ("delta/manifest.txt", "delta/delta.json")
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "train": (
        "train {}/rows.parquet --schema {}/log.toml --config {}/set.toml --out {}/out",
        (*DATA, "set.toml"),
    ),
    "train on converted rows": (
        "train {}/converted --config {}/set.toml --out {}/out",
        (*CONVERTED, "set.toml"),
    ),
    "train --resume": ("train --resume {}/run --epochs 2", (*RUN, *DATA, "run/log.jsonl")),
    "train --start-from": ("train {}/rows.parquet --start-from {}/run --out {}/out", (*RUN, *DATA)),
    "evaluate": ("evaluate {}/run {}/rows.parquet --json", (*RUN, DATA[0])),
    "predict": ("predict {}/run {}/rows.parquet --out {}/out.parquet", (*RUN, DATA[0])),
    "quantize": ("quantize {}/run --out {}/out", RUN),
    "convert": ("convert {}/rows.parquet --out {}/out --schema {}/log.toml --min-count 1", DATA),
    "inspect rows": ("inspect {}/rows.parquet --schema {}/log.toml --json", DATA),
    "inspect a run": ("inspect {}/run --json", RUN),
    "settings": ("settings {}/run", RUN),
    "plot": ("plot {}/run --json", ("run/log.jsonl",)),
    "report": ("report {}/run --out {}/out.html --json", (*RUN, "run/log.jsonl")),
    "schema": ("schema {}/rows.parquet --label label --json", DATA[:1]),
    "tune": (
        "tune {}/rows.parquet --label label --config {}/set.toml --out {}/out --json"
        " --valid-share 0.3 --sampler grid --search optimizer.lr=0.1,0.2",
        (DATA[0], "set.toml"),
    ),
    "export": ("export {}/run --out {}/out --cpu native", RUN),
    "export --since": ("export {}/run --out {}/out --cpu native --since {}/exported", EXPORTED[:1]),
    "apply": ("apply {}/exported {}/delta --out {}/out", (*EXPORTED, *DELTA)),
    "serve": ("serve {}/exported --port 0", EXPORTED),
}


def _drop_what_is_not_installed() -> None:
    try:
        compiler()
    except ConfigError:
        for name in ("export", "export --since", "apply", "serve"):
            del COMMANDS[name]
    if not all(map(find_spec, ("starlette", "uvicorn", "httptools", "prometheus_client"))):
        COMMANDS.pop("serve", None)
    if find_spec("optuna") is None:
        del COMMANDS["tune"]


_drop_what_is_not_installed()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(target: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return damage


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(change(path.read_bytes())) and None


FAULTS: dict[str, Callable[[Path], None]] = {
    "gone": Path.unlink,
    "empty": _bytes(lambda data: b""),
    "cut": _bytes(lambda data: data[: len(data) // 2]),
    "cut by a byte": _bytes(lambda data: data[:-1]),
    "grown": _bytes(lambda data: data + b"\0" * 64),
    "binary": _bytes(lambda data: bytes(range(256)) * 40),
    "zeros": _bytes(lambda data: bytes(len(data))),
    "a folder": _folder,
    "a pipe": _pipe,
    "an endless device": _link("/dev/zero"),
    "a terminal": _link("/dev/tty"),
    "a link to nothing": _link("nothing"),
    "a link to itself": lambda path: _link(path.name)(path),
}
SHORTER_TEXTS = ("empty", "cut", "cut by a byte")  # are other settings, as good as any
# Each byte of what is checked by its bytes: text in a table or a settings file has no checksum.
FLIPPED = (*RUN, *CONVERTED, *EXPORTED, *DELTA, "run/log.jsonl")
FLIPS = 12
HANG = [60]  # seconds


def flip(rng: random.Random) -> Callable[[Path], None]:
    """A fault: one to three bits."""

    def change(data: bytes) -> bytes:
        out = bytearray(data)
        for _ in range(rng.choice((1, 1, 3))):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        return bytes(out)

    return _bytes(change)


# Commands whose output others read, and its name.
MADE = {"train": "run", "convert": "converted", "export": "exported", "export --since": "delta"}


def prepare(folder: Path) -> tuple[Path, Path]:
    """Write rows, a schema, settings and what commands make of them: a copy and the original."""
    rng, place = random.Random(0), folder / "place"
    place.mkdir()
    rows = {
        "label": [rng.randrange(2) for _ in range(96)],
        "price": [rng.random() for _ in range(96)],
        "item": [f"item {rng.randrange(6)}" for _ in range(96)],
    }
    pq.write_table(pa.table(rows), place / "rows.parquet", write_page_checksum=True)
    (place / "log.toml").write_text(SCHEMA)
    (place / "set.toml").write_text(SETTINGS)
    for name, out in MADE.items():
        if name not in COMMANDS:
            continue
        code, said = run(COMMANDS[name][0].replace("{}/out", f"{{}}/{out}"), place)
        assert code == 0, said
    return shutil.copytree(place, folder / "whole"), place


def run(command: str, place: Path) -> tuple[int, str]:
    """Run a command in this process; return its code and what it printed."""
    arguments = [text.replace("{}", str(place)) for text in command.split()]
    if arguments[0] == "serve":
        return _serve(arguments)
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as said,
    ):
        code = command_line(arguments)
    return code, out.getvalue() if code == 0 else said.getvalue()


def _serve(arguments: list[str]) -> tuple[int, str]:
    """Run the server in a process of its own, until it listens or ends by itself."""
    command = [sys.executable, "-m", "sparsetrain", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, errors="replace", **pipes) as process:
        try:
            listens = process.stdout.readline()
            process.terminate()
            said = process.communicate()[1]
        finally:
            process.kill()
    stopped = listens.startswith("listening on ") and process.returncode == -signal.SIGTERM
    return 0 if stopped else process.returncode, said


def result(place: Path, printed: str) -> dict[str, Any]:
    """What a command left and printed, without times."""
    left = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if name.startswith("out") and path.suffix == ".parquet":
            left[name] = pq.read_table(path).to_pylist()
        elif path.name == "manifest.json" and path.is_file():
            left[name] = [(a["name"], a["crc32"]) for a in json.loads(path.read_text())["arrays"]]
        elif name.startswith("out") and path.suffix in (".npy", ".json", ".txt"):
            left[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    with contextlib.suppress(ValueError, IndexError):
        found = json.loads(printed.splitlines()[-1])
        printed = json.dumps({k: v for k, v in found.items() if "second" not in k and k != "files"})
        left["printed"] = printed.replace(str(place), "")
    return left


class Hang(BaseException):
    """A command that does not end."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(HANG[0])
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome_of(command: str, place: Path, expected: dict[str, Any] | None) -> tuple[str, str]:
    """Run a command; return what came of it, and what it said. Any result will do for None."""
    try:
        with limited():
            code, said = run(command, place)
    except Hang:
        return "hang", ""
    except BaseException as error:
        return "crash", f"{type(error).__name__}: {error}"
    if code == 0:
        same = expected is None or result(place, said) == expected
        return ("harmless" if same else "silent"), ""
    errors = [line for line in said.splitlines() if line.startswith("sparsetrain: error: ")]
    told = 2 <= code <= 6 and len(errors) == 1 and "Traceback" not in said
    return ("refused" if told else "crash"), f"{code}: {said}"
