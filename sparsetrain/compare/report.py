# SPDX-License-Identifier: Apache-2.0
"""What a comparison found: figures, what was left out and why, where the paths cross."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

from sparsetrain.compare.case import Case, case_of
from sparsetrain.compare.measurement import Measurement
from sparsetrain.errors import DataError


class LeftOut(NamedTuple):
    """Something that was not measured."""

    sweep: str
    arm: str
    case: Case
    why: str


class Crossing(NamedTuple):
    """Where two arms are equally fast.

    Parameters
    ----------
    formula : str
        Of the updates.
    lookups : int
        Of a step.
    rows : float or None
        Between the two sizes where the order changes, on a logarithmic scale; None if the same arm
        is the faster one on the smallest and on the largest table.
    below, above : str
        The faster arm on smaller and on larger tables.
    least, most : int
        Rows of the smallest and the largest table that both were measured on.
    except_at : tuple of int
        Rows of tables on which the other arm was faster, though it is on neither end.
    """

    formula: str
    lookups: int
    rows: float | None
    below: str
    above: str
    least: int
    most: int
    except_at: tuple[int, ...] = ()

    @property
    def about(self) -> int | None:
        """`rows` by two digits: no more are known."""
        return None if self.rows is None else int(float(f"{self.rows:.1e}"))


@dataclass
class Report:
    """All of a comparison.

    Parameters
    ----------
    machine : dict
        Processor, threads, cache, versions.
    stream : float
        Bytes per second of the stream roof.
    measurements : list of Measurement
        In the order in which they were made.
    left_out : list of LeftOut
        What was wanted and is not there.
    """

    machine: dict[str, Any]
    stream: float
    measurements: list[Measurement] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def of(self, sweep: str, formula: str | None = None) -> list[Measurement]:
        """The measurements of a sweep."""
        return [
            m for m in self.measurements if m.sweep == sweep and formula in (None, m.case.formula)
        ]

    @property
    def crossings(self) -> list[Crossing]:
        """For each formula that was swept over rows, where row-sparse meets fair dense."""
        swept = self.of("rows")
        kinds = dict.fromkeys((m.case.formula, m.case.lookups) for m in swept)
        found = (_crossing(swept, *kind) for kind in kinds)
        return [crossing for crossing in found if crossing is not None]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        return {
            "machine": self.machine,
            "stream_gb_per_s": self.stream / 1e9,
            "measurements": [m.to_dict() for m in self.measurements],
            "crossings": [crossing._asdict() for crossing in self.crossings],
            "left_out": [
                {"sweep": o.sweep, "arm": o.arm, **asdict(o.case), "why": o.why}
                for o in self.left_out
            ],
        }

    @classmethod
    def read(cls, file: str | Path) -> Report:
        """Read ``compare.json`` again, to draw it anew or to look at it.

        Raises
        ------
        DataError
            If the file is not there or is no report.
        """
        try:
            found = json.loads(Path(file).read_text(encoding="utf-8"))
            return cls(
                found["machine"],
                1e9 * found["stream_gb_per_s"],
                [Measurement.from_dict(row) for row in found["measurements"]],
                [LeftOut(o["sweep"], o["arm"], case_of(o), o["why"]) for o in found["left_out"]],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file}: no report of a comparison: {error}") from error

    def write(self, folder: str | Path) -> list[Path]:
        """Write ``compare.csv`` and ``compare.json``; returns their paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        whole = json.dumps(self.to_dict(), indent=1)
        return [
            _replaced(folder / "compare.csv", _csv([m.to_dict() for m in self.measurements])),
            _replaced(folder / "compare.json", whole),
        ]


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO(newline="")
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def _replaced(file: Path, text: str) -> Path:
    """Write a file at once: a long run writes it often, and may be stopped at any moment."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)
    return file


def _crossing(swept: Iterable[Measurement], formula: str, lookups: int) -> Crossing | None:
    times: dict[str, dict[int, float]] = {"dense": {}, "sparse": {}}
    for m in swept:
        if (m.case.formula, m.case.lookups) == (formula, lookups) and m.arm in times:
            times[m.arm][m.case.rows] = m.median_us
    rows = sorted(times["dense"].keys() & times["sparse"].keys())
    if not rows:
        return None
    gains = [log(times["dense"][r] / times["sparse"][r]) for r in rows]
    faster = ["sparse" if gain > 0 else "dense" for gain in gains]
    ends = faster[0], faster[-1], rows[0], rows[-1]
    if faster[0] == faster[-1]:
        others = tuple(r for r, arm in zip(rows, faster, strict=True) if arm != faster[0])
        return Crossing(formula, lookups, None, *ends, others)
    place = _last_change(gains)
    meeting = _meeting(rows[place : place + 2], gains[place : place + 2])
    return Crossing(formula, lookups, meeting, *ends)


def _last_change(gains: Sequence[float]) -> int:
    """The place before the last change of sign: noise in front of it is no crossing."""
    return max(n for n in range(len(gains) - 1) if (gains[n] > 0) != (gains[n + 1] > 0))


def _meeting(rows: Sequence[int], gains: Sequence[float]) -> float:
    """Where a line between two points, on a logarithmic scale, meets 0."""
    share = gains[0] / (gains[0] - gains[1])
    return exp(log(rows[0]) + share * (log(rows[1]) - log(rows[0])))
