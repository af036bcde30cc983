# SPDX-License-Identifier: Apache-2.0
"""A coverage-guided fuzzer for what is read from outside: manifest, settings, schema.

Inputs that reach a new line of the package are kept and mutated further. Any exception that is not
one of ours is a crash.

    python -m tests.faults.fuzz --seconds 60
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from sparsetrain.checkpoint import manifest
from sparsetrain.cli.settings import resolve_settings
from sparsetrain.data.schema.column_rule import ColumnRule, TextFormat
from sparsetrain.data.schema.derived import Derived
from sparsetrain.data.schema.schema import Schema
from sparsetrain.errors import SparsetrainError
from sparsetrain.training.run.checkpoints import read_pointer
from sparsetrain.training.run.log import read_log
from sparsetrain.training.run.state import RunState

PACKAGE = str(Path(manifest.__file__).parents[1])
GOLDEN = Path(__file__).parents[1] / "golden" / "run"


def _manifest(data: bytes, place: Path) -> None:
    """Parse it as it is, and once more with a checksum that fits."""
    for text in (data, _signed(data)):
        try:
            manifest.parse(text)
        except ValueError:
            continue


def _signed(data: bytes) -> bytes:
    try:
        body = json.loads(data)
        body.pop("crc32", None)
        return json.dumps({**body, "crc32": manifest._checksum(body)}).encode()
    except (ValueError, RecursionError, AttributeError, TypeError):
        return data


def _settings(suffix: str) -> Callable[[bytes, Path], None]:
    def target(data: bytes, place: Path) -> None:
        path = place / f"settings{suffix}"
        path.write_bytes(data)
        resolve_settings(path)

    return target


def _schema(data: bytes, place: Path) -> None:
    for suffix in (".toml", ".json"):
        path = place / f"schema{suffix}"
        path.write_bytes(data)
        try:
            Schema.read(path)
        except SparsetrainError:
            continue


def _run_files(data: bytes, place: Path) -> None:
    (place / "log.jsonl").write_bytes(data)
    (place / "LATEST").write_bytes(data)
    for read in (lambda: read_log(place), lambda: read_pointer(place, "LATEST")):
        try:
            read()
        except SparsetrainError:
            continue


def _state(data: bytes, place: Path) -> None:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return
    RunState.from_dict(values)


_SCHEMA = json.dumps(
    Schema(
        label="click",
        dense=("price",),
        categories=("site", "hour"),
        time="when",
        derived={"hour": Derived("when", modulo=24)},
        columns={"site": ColumnRule(min_count=2)},
        text=TextFormat(delimiter=",", names=("click", "price", "site", "when")),
    ).to_dict()
).encode()
_SCHEMA_TOML = b"""label = "click"
dense = ["price"]
categories = ["site", "hour"]
[derived.hour]
from = "when"
modulo = 24
"""
_SETTINGS = b"""[train]
epochs = 2
seed = 7
[model]
bottom = [64, 32]
[optimizer]
name = "adagrad"
lr = 0.02
"""
_STATE = json.dumps(RunState().to_dict()).encode()
_LOG = b'{"split": "train", "step": 2, "loss": 0.5}\nstep-000000000002\n'
# Target -> what is fed with inputs, and where they begin.
TARGETS: dict[str, tuple[Callable[[bytes, Path], None], list[bytes]]] = {
    "manifest": (_manifest, []),
    "settings": (_settings(".toml"), [_SETTINGS]),
    "yaml": (_settings(".yaml"), [b"train:\n  epochs: 2\nmodel:\n  bottom: [64, 32]\n"]),
    "schema": (_schema, [_SCHEMA, _SCHEMA_TOML]),
    "run files": (_run_files, [_LOG, _LOG.splitlines()[1]]),
    "state": (_state, [_STATE]),
}
TARGETS["manifest"][1].append((GOLDEN / "manifest.json").read_bytes())
_TOKENS = rb"""{ } [ ] " : , null true -1 1e999 NaN ../ = !!python/object:os.system""".split()
_TOKENS += [b"\0", b"\xff\xfe", b"\xf0\x9f\x98\x80", b"9" * 40, b"[" * 50, b"&a [*a]", b"\n"]


def mutate(data: bytes, rng: random.Random, corpus: list[bytes]) -> bytes:
    """Return `data` with a few changes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at, end = sorted(rng.randrange(len(out) + 1) for _ in range(2))
        how = rng.randrange(6)
        if how == 0 and out:
            out[rng.randrange(len(out))] = rng.randrange(256)
        elif how == 1:
            out[at:at] = rng.choice(_TOKENS)
        elif how == 2:
            del out[at : min(end, at + 40)]
        elif how == 3:
            out[at:at] = out[at : min(end, at + 60)]
        elif how == 4:
            other = rng.choice(corpus)
            start = rng.randrange(len(other) + 1)
            out[at:at] = other[start : start + 60]
        else:
            out[at : at + 4] = rng.choice(_TOKENS)
    return bytes(out[:20_000])


_VALUES = (None, True, -1, 0, 1, 2**70, 1.5, "", "x", "../x", "\udcff", [], [1], {}, {"a": 1})


def _regrown(data: bytes, rng: random.Random) -> bytes:
    """Change one value somewhere in a JSON text; what is not JSON stays as it is."""
    try:
        body = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return data
    places: list[tuple[Any, Any]] = []
    level = [body]
    while level:
        inner = level.pop()
        if isinstance(inner, dict | list):
            keys = list(inner) if isinstance(inner, dict) else range(len(inner))
            places += ((inner, key) for key in keys)
            level += (inner[key] for key in keys)
    if places:
        inner, key = rng.choice(places)
        how = rng.randrange(5)
        if how == 0:
            del inner[key]
        elif how == 1 and isinstance(inner, list):
            inner.append(inner[key])
        elif how == 2 and type(inner[key]) is int:
            inner[key] += rng.choice((-1, 1, 1 << 31, 1 << 62))
        else:
            inner[key] = rng.choice(_VALUES)
    return json.dumps(body).encode()


def run(
    name: str, *, seed: int, place: Path, seconds: float = 1e9, most: int = 10**9
) -> dict[str, Any]:
    """Fuzz one target for a time, or for a number of tries; return counts and crashes."""
    target, corpus = TARGETS[name][0], list(TARGETS[name][1])
    rng, seen = random.Random(seed), set[tuple[str, int]]()
    tries, crashes = 0, list[str]()
    due = time.monotonic() + seconds
    while tries < most and time.monotonic() < due and len(crashes) < 5:
        change = rng.choice((_regrown, lambda data, rng: mutate(data, rng, corpus)))
        given = change(rng.choice(corpus), rng) if tries >= len(corpus) else corpus[tries]
        tries += 1
        lines, crash = _traced(target, given, place)
        if crash:
            crashes.append(f"{given!r}\n{crash}")
        if not lines <= seen:
            seen |= lines
            corpus.append(given)
    counts = {"tries": tries, "lines": len(seen), "corpus": len(corpus)}
    return {"target": name, **counts, "crashes": crashes}


def _traced(
    target: Callable[[bytes, Path], None], data: bytes, place: Path
) -> tuple[set[tuple[str, int]], str | None]:
    """Run the target; return the lines of the package it reached, and a crash if there was one."""
    lines: set[tuple[str, int]] = set()

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
        return on_line

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        return on_line if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        target(data, place)
    except SparsetrainError as error:
        return lines, "a message of two lines" if "\n" in str(error) else None
    except Exception:
        return lines, traceback.format_exc()
    finally:
        sys.settrace(before)
    return lines, None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    options = parser.parse_args()
    failed = False
    for name in TARGETS:
        with tempfile.TemporaryDirectory() as place:
            share = options.seconds / len(TARGETS)
            report = run(name, seconds=share, seed=options.seed, place=Path(place))
        print(json.dumps({**report, "crashes": len(report["crashes"])}), flush=True)
        for crash in report["crashes"]:
            failed = True
            print(crash, file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    main()
