# SPDX-License-Identifier: Apache-2.0
"""`StepProfile`: the times of a step's kernels as a value that prints as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from statistics import median
from typing import Any

from sparsetrain.errors import CheckpointError
from sparsetrain.system.html import escape, table
from sparsetrain.system.text import aligned

_HEAD = ("kernel", "calls", "ms", "share", "GFLOP/s", "GB/s")


@dataclass
class Entry:
    """Totals over the calls of one kernel in a step."""

    calls: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True)
class KernelTime:
    """One kernel in a step.

    Parameters
    ----------
    name : str
        The kernel's operators, in words.
    calls : int
        Number of calls in a step.
    seconds : float
        Total time of the kernel's calls in a step; the median over steps.
    flops : float
        Multiplications and additions in a step; 0 except for matrix products.
    bytes : float
        Bytes of the kernel's arguments, each counted once; of tables, only the looked-up rows.
    """

    name: str
    calls: int
    seconds: float
    flops: float
    bytes: float

    @property
    def gflops(self) -> float:
        """Billions of operations per second."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gb_per_s(self) -> float:
        """Billions of bytes per second."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class StepProfile:
    """Times of the kernels of a training step; ``print(profile)`` shows a table.

    Parameters
    ----------
    rows : int
        Rows of a batch.
    steps : int
        Number of recorded steps.
    threads : int
        Number of threads for kernels.
    seconds : float
        Median time of a step.
    kernels : tuple of KernelTime
        The kernels, slowest first.
    device : str
        The device that ran the kernels, one at a time; empty for the CPU.
    spared : float
        Multiplications and additions of matrix products that the forward pass skipped, since
        nothing reads their results.
    """

    rows: int
    steps: int
    threads: int
    seconds: float
    kernels: tuple[KernelTime, ...]
    device: str = ""
    spared: float = 0.0

    @property
    def outside(self) -> float:
        """Seconds of a step that are spent outside kernels, in checks, copies and Python."""
        return max(0.0, self.seconds - sum(kernel.seconds for kernel in self.kernels))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        kernels = [{**asdict(k), "gflops": k.gflops, "gb_per_s": k.gb_per_s} for k in self.kernels]
        return {**asdict(self), "kernels": kernels, "outside": self.outside}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StepProfile:
        """Rebuild a profile from the values of `to_dict`.

        Raises
        ------
        CheckpointError
            If a value is missing or of a wrong type.
        """
        try:
            kernels = tuple(
                KernelTime(**_typed(KernelTime, kernel)) for kernel in values["kernels"]
            )
            return cls(**{**_typed(cls, values), "kernels": kernels})
        except (KeyError, TypeError, ValueError, OverflowError):
            raise CheckpointError(
                "the saved profile is damaged: unknown or missing fields"
            ) from None

    def __str__(self) -> str:
        return "\n".join([self._title, *aligned([_HEAD, *self._lines]), *self._notes])

    def _repr_html_(self) -> str:
        notes = "".join(f"\n<p>{escape(note)}</p>" for note in self._notes)
        return f"<b>{escape(self._title)}</b>\n{table(self._lines, _HEAD)}{notes}"

    @property
    def _notes(self) -> list[str]:
        if not self.spared:
            return []
        return [f"dead rows: {self.spared / 1e9:.3f} GFLOPs of the forward pass were skipped"]

    @property
    def _title(self) -> str:
        rate = self.rows / self.seconds if self.seconds else 0.0
        place = f"{self.threads} threads"
        if self.device:
            place = f"{self.device}, with launches that wait for each other while profiling"
        return (
            f"a step of {self.rows:,} rows: {1e3 * self.seconds:.2f} ms, {rate:,.0f} rows/s, on "
            f"{place}; medians of {self.steps} steps"
        )

    @property
    def _lines(self) -> list[tuple[str, ...]]:
        outside = ("outside kernels", "", *self._time(self.outside), "", "")
        return [*map(self._cells, self.kernels), outside]

    def _cells(self, kernel: KernelTime) -> tuple[str, ...]:
        speed = f"{kernel.gflops:.0f}" if kernel.flops else ""
        moved = "" if kernel.flops else f"{kernel.gb_per_s:.1f}"
        return (kernel.name, str(kernel.calls), *self._time(kernel.seconds), speed, moved)

    def _time(self, seconds: float) -> tuple[str, str]:
        share = seconds / self.seconds if self.seconds else 0.0
        return f"{1e3 * seconds:.3f}", f"{share:.1%}"


# Annotations are strings here.
_KINDS = {"str": str, "int": int, "float": float}


def _typed(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain fields of a data class, converted to their types."""
    plain = [field for field in fields(kind) if field.type in _KINDS]
    found = {f.name: values[f.name] for f in plain if f.default is MISSING or f.name in values}
    return {f.name: _KINDS[str(f.type)](found[f.name]) for f in plain if f.name in found}


def kernel_times(steps: Sequence[dict[str, Entry]]) -> list[KernelTime]:
    """Return each kernel's medians in a step.

    Medians are over the steps that ran the kernel: a smaller last batch has matrix products of
    other sizes, which count as different kernels.
    """
    names = dict.fromkeys(name for step in steps for name in step)
    found = ((name, [step[name] for step in steps if name in step]) for name in names)
    return [
        KernelTime(
            name,
            entries[0].calls,
            median(entry.seconds for entry in entries),
            median(entry.flops for entry in entries),
            median(entry.bytes for entry in entries),
        )
        for name, entries in found
    ]


def longest_first(kernels: Iterable[KernelTime]) -> tuple[KernelTime, ...]:
    """Sort kernels by time, slowest first."""
    return tuple(sorted(kernels, key=lambda kernel: -kernel.seconds))
