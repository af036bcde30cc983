# SPDX-License-Identifier: Apache-2.0
"""`Measurement`: what one arm took for one case, as a value and as a row of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sparsetrain.compare.case import Case, case_of


@dataclass(frozen=True)
class Measurement:
    """What one arm took for one case.

    Parameters
    ----------
    sweep : str
        What it was measured for.
    arm : str
        A name in `ARMS`, or a peer.
    case : Case
        The table and the step.
    unique : float
        Distinct rows of a step, on average.
    steps : int
        Steps that count.
    median_us, p10_us, p90_us : float
        Microseconds of a step.
    first_us : float or None
        Median of the first steps on a large table, before it has settled.
    writes_us : float or None
        Of these, median of the half that writes, after checks and coalescing.
    kernel_us : float or None
        Median of the kernel that updates the touched rows, where there is one, in steps after them.
    traffic_bytes : float
        Bytes that a step must move, by formula.
    counted_bytes : float or None
        Bytes of the cache misses of a step, where the system counts them.
    memory_bytes : int or None
        Memory that a step needed beside table and slots, where the system says it.
    formula_memory_bytes : int
        The same by formula.
    kernel_roof_us : float or None
        Median of the roof in that kernel's place, by turns with it; see `in_place`.
    lookup_us, after_lookup_us : float or None
        Of steps whose rows are looked up first, as in training: median of the lookup, and of the
        update. Where rows are caught up that comes before a lookup, and nothing is measured.
    roof_us : float or None
        Microseconds of the roof: the distinct rows read and written, nothing else.
    """

    sweep: str
    arm: str
    case: Case
    unique: float
    steps: int
    median_us: float
    p10_us: float
    p90_us: float
    first_us: float | None
    writes_us: float | None
    kernel_us: float | None
    kernel_roof_us: float | None
    lookup_us: float | None
    after_lookup_us: float | None
    traffic_bytes: float
    counted_bytes: float | None
    memory_bytes: int | None
    formula_memory_bytes: int
    roof_us: float | None

    @property
    def bandwidth(self) -> float:
        """Bytes per second, of those that must be moved."""
        return self.traffic_bytes / (1e-6 * self.median_us)

    @property
    def roof_share(self) -> float | None:
        """The roof's time as a share of this one's; both touch the same number of rows."""
        return None if self.roof_us is None else self.roof_us / self.median_us

    def to_dict(self) -> dict[str, Any]:
        """One flat row of a table: the case's settings among the figures."""
        flat = asdict(self)
        head = {name: flat.pop(name) for name in ("sweep", "arm")}
        rates = {"gb_per_s": self.bandwidth / 1e9, "roof_share": self.roof_share}
        return {**head, **flat.pop("case"), **flat, **rates}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Measurement:
        """What `to_dict` was made of."""
        names = [field.name for field in fields(cls) if field.name != "case"]
        figures: dict[str, Any] = {
            name: row.get(name) if name in _LATER else row[name] for name in names
        }
        return cls(case=case_of(row), **figures)


# Figures that reports of earlier versions lack.
_LATER = {"kernel_roof_us", "lookup_us", "after_lookup_us"}
