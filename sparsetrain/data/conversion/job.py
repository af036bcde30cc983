# SPDX-License-Identifier: Apache-2.0
"""`Job`: the arguments of one conversion, and the plan that identifies its work folder.

The plan holds everything that decides the result. Work under another plan can be reused if only
rules differ that do not affect reading.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.encode.encoder_state import write_manifest
from sparsetrain.errors import DataError

WORK = "_work"  # the folder inside the result

# Settings that affect ids and numbers, but not the counts of a chunk.
_RULES = ("min_count", "max_rows")
_SETTINGS = (*_RULES, "dense_fill", "missing_flags")
_NO_RULE = {"keep": "first"}


class Progress(Protocol):
    """Callback that reports the progress of a pass."""

    def __call__(self, what: str, rows: int, done: float) -> None:
        """`rows` more rows are through pass `what`, of which the share `done` is done.

        What an earlier run had done already counts in `done` alone.
        """


def no_progress(what: str, rows: int, done: float) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Job:
    """Arguments of one conversion; see `convert_files` for the fields."""

    files: list[str]
    out: Path
    blank: Encoder
    known: Encoder | None
    label: bool
    bad_rows: str
    memory: int
    workers: int
    progress: Progress

    @property
    def work(self) -> Path:
        """Folder of intermediate files."""
        return self.out / WORK

    def plan(self) -> dict[str, Any]:
        """Return everything the result depends on, as JSON would give it back."""
        plan = {
            "version": 1,
            "inputs": _identity(self.files),
            "encoder": self.known.fingerprint if self.known else write_manifest(self.blank),
            "label": self.label,
            "bad_rows": self.bad_rows,
        }
        values: dict[str, Any] = json.loads(json.dumps(plan))
        return values


def reading_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a plan on which the first pass depends."""
    encoder = plan["encoder"]
    if not isinstance(encoder, dict):
        return plan
    rules = {
        name: _without(rule, _RULES) for name, rule in encoder["schema"].get("columns", {}).items()
    }
    schema = encoder["schema"] | {"columns": {n: r for n, r in rules.items() if r != _NO_RULE}}
    settings = _without(encoder["settings"], _SETTINGS)
    return plan | {"encoder": encoder | {"settings": settings, "schema": schema}}


def _without(values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def digest(values: dict[str, Any]) -> str:
    """Return a digest of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def _identity(files: Sequence[str]) -> list[dict[str, object]]:
    """Return path, size and modification time of each input."""
    try:
        stats = [(file, os.stat(file)) for file in files]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from None
    return [
        {"path": str(Path(file).absolute()), "size": s.st_size, "changed": s.st_mtime_ns}
        for file, s in stats
    ]
