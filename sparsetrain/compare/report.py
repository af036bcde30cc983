# SPDX-License-Identifier: Apache-2.0
"""Results of a comparison: measurements, cases left out, and where sparse and dense cross."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

from sparsetrain.compare.case import Case
from sparsetrain.compare.measure import Measurement
from sparsetrain.data.atomic_write import atomic_write


class LeftOut(NamedTuple):
    """A planned measurement that was not made."""

    sweep: str
    arm: str
    case: Case
    reason: str


class Crossing(NamedTuple):
    """The table size at which fair dense and row-sparse updates take equally long.

    Parameters
    ----------
    formula : str
        Optimizer formula.
    lookups : int
        Ids of a step.
    rows : float or None
        Size of the crossing, interpolated on a logarithmic scale; None if the same arm is faster on
        the smallest and on the largest table.
    below, above : str
        The faster arm on smaller and on larger tables.
    least, most : int
        Rows of the smallest and the largest table on which both were measured.
    exceptions : tuple of int
        Sizes at which the other arm was faster, though it is at neither end.
    """

    formula: str
    lookups: int
    rows: float | None
    below: str
    above: str
    least: int
    most: int
    exceptions: tuple[int, ...] = ()

    @property
    def rounded(self) -> int | None:
        """`rows` to two digits, the precision that the measurements have."""
        return None if self.rows is None else int(float(f"{self.rows:.1e}"))


@dataclass
class Report:
    """Results of a comparison.

    Parameters
    ----------
    machine : dict
        Processor, threads, memory, versions.
    measurements : list of Measurement
        In the order in which they were made.
    left_out : list of LeftOut
        Planned measurements that were not made.
    """

    machine: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def of(self, sweep: str, formula: str | None = None) -> list[Measurement]:
        """Return the measurements of a sweep."""
        return [
            m for m in self.measurements if m.sweep == sweep and formula in (None, m.case.formula)
        ]

    @property
    def crossings(self) -> list[Crossing]:
        """The crossing of each formula that was swept over rows."""
        swept = self.of("rows")
        kinds = dict.fromkeys((m.case.formula, m.case.lookups) for m in swept)
        crossings = (_crossing(swept, *kind) for kind in kinds)
        return [crossing for crossing in crossings if crossing is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as `--json` prints them."""
        return {
            "machine": self.machine,
            "measurements": [m.to_dict() for m in self.measurements],
            "crossings": [crossing._asdict() for crossing in self.crossings],
            "left_out": [
                {"sweep": o.sweep, "arm": o.arm, **asdict(o.case), "reason": o.reason}
                for o in self.left_out
            ],
        }

    def write(self, folder: str | Path) -> Path:
        """Write ``compare.json`` atomically, and return its path."""
        file = Path(folder) / "compare.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as written:
            written.write(json.dumps(self.to_dict(), indent=1).encode())
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
        exceptions = tuple(r for r, arm in zip(rows, faster, strict=True) if arm != faster[0])
        return Crossing(formula, lookups, None, *ends, exceptions)
    # The last change of sign: noise before it is no crossing.
    n = max(n for n in range(len(gains) - 1) if (gains[n] > 0) != (gains[n + 1] > 0))
    return Crossing(formula, lookups, _interpolate(rows[n : n + 2], gains[n : n + 2]), *ends)


def _interpolate(rows: Sequence[int], gains: Sequence[float]) -> float:
    """Return where a line between two points, on a logarithmic scale, meets 0."""
    share = gains[0] / (gains[0] - gains[1])
    return exp(log(rows[0]) + share * (log(rows[1]) - log(rows[0])))
