# SPDX-License-Identifier: Apache-2.0
"""`Job`: the arguments of one conversion, and a digest of everything that decides its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from sparsetrain.data.encode.encoder_state import write_manifest
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.read.file_systems import is_url, size_and_time
from sparsetrain.data.read.parquet import DATASET_FILE


class Progress(Protocol):
    """Callback that reports the progress of a pass."""

    def __call__(self, what: str, rows: int, done: float) -> None:
        """Report that pass `what` read `rows` more rows, and its completed share `done`.

        Work of an earlier run counts only in `done`.
        """


@dataclass(frozen=True)
class Job:
    """Arguments of one conversion; see `convert_files` for the fields."""

    files: list[str]
    out: Path
    blank: Rules
    known: Rules | None
    label: bool
    bad_rows: str
    memory: int
    workers: int
    progress: Progress

    @property
    def work(self) -> Path:
        """Folder removed at the end."""
        return self.out / "_work"

    @property
    def state(self) -> Path:
        """File of the finished parts, an unfinished `dataset.json`."""
        return self.work / DATASET_FILE

    @cached_property
    def plan(self) -> str:
        """A digest of everything the result depends on."""
        known, blank = self.known, self.blank
        encoder = known.fingerprint if known else write_manifest(blank.fields)
        plan = {
            "version": 3,
            "inputs": _identity(self.files),
            "encoder": encoder,
            "label": self.label,
            "bad_rows": self.bad_rows,
        }
        return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:32]


def _identity(files: Sequence[str]) -> list[dict[str, object]]:
    """Return path, size and modification time of each input."""
    stats = [(file, size_and_time(file)) for file in files]
    return [
        {"path": file if is_url(file) else str(Path(file).absolute()), "size": s, "changed": t}
        for file, (s, t) in stats
    ]
