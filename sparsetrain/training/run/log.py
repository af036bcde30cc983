# SPDX-License-Identifier: Apache-2.0
"""Log of a run, one record per line: `log.jsonl` for programs, `log.csv` for spreadsheets.

A checkpoint stores how many lines the log had. A resumed run truncates the log to that length, so
the log of a killed and resumed run is like the log of an uninterrupted run. Lines are flushed one
by one and are on the disk before a checkpoint becomes valid. A line of `log.jsonl` ends with a
CRC-32 of its fields, so a changed digit is detected.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from sparsetrain.errors import CheckpointError
from sparsetrain.labels.label import LABELS, Labels
from sparsetrain.labels.label_metrics import score_names
from sparsetrain.metrics import GroupedAUC
from sparsetrain.system.regular_files import read_regular_file

JSONL, CSV = "log.jsonl", "log.csv"
_MAX_BYTES = 256 << 20  # a million lines
# Fields of a line before the validation scores, in the order of the columns.
_FIRST = ("split", "step", "epoch", "rows", "seconds", "rows_per_s", "lr", "loss")
_LAST = ("loss_scale",)
_CRC = "crc32"


def fields(labels: Labels, grouped: bool) -> tuple[str, ...]:
    """Return the columns of the log of a model with these labels; see `LabelMetrics`."""
    scores = tuple(name for name in score_names(labels, grouped) if name not in _FIRST)
    return (*_FIRST, *scores, *_LAST)


# Known scores; in a line, the name of a label may precede them.
_SCORES = {
    *GroupedAUC.SCORES,
    *(score for label in LABELS.values() for score in label.scores.SCORES),
    *score_names(Labels({})),
}


def _is_field(name: str) -> bool:
    return name in _FIRST or name in _LAST or name.rpartition(".")[2] in _SCORES


class Log:
    """Appends lines to both files.

    Parameters
    ----------
    folder : Path
    lines : int
        Number of valid lines of the log; later lines are dropped.
    fields : tuple of str
        The columns.
    """

    def __init__(self, folder: Path, lines: int, fields: tuple[str, ...]) -> None:
        self._fields = fields
        kept = read_log(folder)[:lines]
        self.lines = len(kept)
        drafts = [folder / f".{name}.new" for name in (JSONL, CSV)]
        # Both files stay open during the run; renaming a draft does not affect its handle.
        self._json, self._csv = (_new(path) for path in drafts)
        self._rows = csv.DictWriter(self._csv, self._fields, lineterminator="\n")
        self._rows.writeheader()
        for line in kept:
            self._write(line)
        self.sync()
        for path, name in zip(drafts, (JSONL, CSV), strict=True):
            os.replace(path, folder / name)

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._json.close()
        self._csv.close()

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line; a number that is not finite becomes null."""
        known = {name: plain(line[name]) for name in self._fields if name in line}
        self._write(known)
        self.lines += 1

    def sync(self) -> None:
        """Make all lines durable."""
        for file in (self._json, self._csv):
            file.flush()
            os.fsync(file.fileno())

    def _write(self, line: Mapping[str, Any]) -> None:
        self._json.write(json.dumps({**line, _CRC: _crc32(line)}) + "\n")
        self._rows.writerow(line)
        self._json.flush()
        self._csv.flush()


def _new(path: Path) -> IO[str]:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return open(path, "x", encoding="utf-8", newline="")


def read_log(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the lines of a run's log, without a last line that a kill cut short.

    Raises
    ------
    CheckpointError
        If a complete line is not a valid record, or the file is not a regular file.
    """
    path = Path(folder) / JSONL
    try:
        content = read_regular_file(path, _MAX_BYTES, follow_links=False)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    lines = content.decode("utf-8", errors="replace").split("\n")
    if "}" not in lines[-1]:
        del lines[-1]
    return [_parse(path, number, line) for number, line in enumerate(lines, 1)]


def _parse(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        raise CheckpointError(f"{path}: line {number} is not a valid log record")
    if _CRC in line and line.pop(_CRC) != _crc32(line):  # logs of older versions have none
        raise CheckpointError(f"{path}: line {number} is damaged or was edited")
    numbers = (int, float, type(None))
    for name, value in line.items():
        if not (_is_field(name) and isinstance(value, str if name == "split" else numbers)):
            raise CheckpointError(f"{path}: line {number} is not a valid log record")
    return line


def _crc32(line: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(line).encode())


def plain(value: Any) -> Any:
    """Return a NumPy number as a Python number; None if it is not finite."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
