# SPDX-License-Identifier: Apache-2.0
"""Results of a comparison: measurements, cases left out, and where sparse and dense cross."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

from sparsetrain.compare.case import Case
from sparsetrain.data.atomic_write import atomic_write


@dataclass(frozen=True)
class Measurement:
    """Time and memory of one arm on one case.

    Parameters
    ----------
    arm : str
        A name in `ARMS`.
    case : Case
        The table and the step.
    unique : float
        Distinct rows of a step, on average.
    steps : int
        Steps that count.
    median_us, p10_us, p90_us : float
        Microseconds of a step.
    memory_bytes : int or None
        Measured memory of a step on top of table and slots, where the system reports it.
    formula_memory_bytes : int
        The same by formula.
    """

    arm: str
    case: Case
    unique: float
    steps: int
    median_us: float
    p10_us: float
    p90_us: float
    memory_bytes: int | None
    formula_memory_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return one flat row of a table, the case's fields among the results."""
        flat = asdict(self)
        return {"arm": flat.pop("arm"), **flat.pop("case"), **flat}


class LeftOut(NamedTuple):
    """A planned measurement that was not made."""

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

    @property
    def groups(self) -> dict[tuple[str, bool], list[Measurement]]:
        """Measurements by formula, and whether they are of the user's tables."""
        found: dict[tuple[str, bool], list[Measurement]] = {}
        for m in self.measurements:
            found.setdefault((m.case.formula, bool(m.case.label)), []).append(m)
        return found

    @property
    def crossings(self) -> list[Crossing]:
        """The crossing of each formula that was swept over rows."""
        swept = [own for (_, labelled), own in self.groups.items() if not labelled]
        return [found for own in swept if (found := _crossing(own)) is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as `--json` prints them."""
        return {
            "machine": self.machine,
            "measurements": [m.to_dict() for m in self.measurements],
            "crossings": [crossing._asdict() for crossing in self.crossings],
            "left_out": [
                {"arm": o.arm, **asdict(o.case), "reason": o.reason} for o in self.left_out
            ],
        }

    def write(self, folder: str | Path) -> Path:
        """Write ``compare.json`` atomically, and return its path."""
        file = Path(folder) / "compare.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as written:
            written.write(json.dumps(self.to_dict(), indent=1).encode())
        return file


def _crossing(swept: Sequence[Measurement]) -> Crossing | None:
    dense, sparse = (
        {m.case.rows: m.median_us for m in swept if m.arm == arm} for arm in ("dense", "sparse")
    )
    rows = sorted(dense.keys() & sparse.keys())
    if not rows:
        return None
    gains = [log(dense[r] / sparse[r]) for r in rows]
    faster = ["sparse" if gain > 0 else "dense" for gain in gains]
    formula, lookups = swept[0].case.formula, swept[0].case.lookups
    ends = faster[0], faster[-1], rows[0], rows[-1]
    if faster[0] == faster[-1]:
        exceptions = tuple(r for r, arm in zip(rows, faster, strict=True) if arm != faster[0])
        return Crossing(formula, lookups, None, *ends, exceptions)
    # The last change of sign: noise before it is not a crossing.
    n = max(n for n in range(len(gains) - 1) if (gains[n] > 0) != (gains[n + 1] > 0))
    return Crossing(formula, lookups, _interpolate(rows[n : n + 2], gains[n : n + 2]), *ends)


def _interpolate(rows: Sequence[int], gains: Sequence[float]) -> float:
    """Return where a line between two points, on a logarithmic scale, meets 0."""
    share = gains[0] / (gains[0] - gains[1])
    return exp(log(rows[0]) + share * (log(rows[1]) - log(rows[0])))
