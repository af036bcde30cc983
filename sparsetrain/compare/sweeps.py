# SPDX-License-Identifier: Apache-2.0
"""Plans of a comparison: one axis at a time, the rest as in a base case. A rule table of axes.

The brief plan takes about two minutes on two cores; the full one goes to the ends of every axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from sparsetrain import runtime
from sparsetrain.compare.case import FLOAT_BYTES, Case
from sparsetrain.errors import ConfigError

FORMULAS = ("sgd", "momentum", "adagrad", "rowwise_adagrad", "adam")
TABLES = "tables"  # the sweep over the tables of a model
STORAGE = "storage"  # all of them in one array, as the model has them
OURS = ("dense", "sparse")
_ALL = ("stock", "dense", "sparse", "exact")
_WIDTHS = (4, 8, 16, 32, 64, 128, 256)
_WIDTH_TABLE_BYTES = 2**28  # the same for each width, and beyond any cache


class Item(NamedTuple):
    """A case to measure, the sweep it belongs to, and its arms."""

    sweep: str
    case: Case
    arms: tuple[str, ...]


class Axis(NamedTuple):
    """The sweep of one axis.

    Parameters
    ----------
    cases : callable
        From the base case, and whether the plan is full, to the cases.
    arms : tuple of str
        Arms of the brief plan; the full one has all.
    """

    cases: Callable[[Case, bool], list[Case]]
    arms: tuple[str, ...] = OURS


def _rows(base: Case, full: bool) -> list[Case]:
    powers = [10**n for n in range(3, 9 if full else 8)]
    between = [3 * power for power in powers[:-1]]
    return [replace(base, rows=rows) for rows in sorted([*powers, *between])]


def _lookups(base: Case, full: bool) -> list[Case]:
    counts = (64, 256, 1024, 2048, 4096, 16_384, 65_536, 262_144)
    chosen = counts if full else counts[1::2]
    return [replace(base, lookups=count * base.pooling) for count in chosen]


def _width(base: Case, full: bool) -> list[Case]:
    del full  # all widths are cheap
    rows = {width: _WIDTH_TABLE_BYTES // (FLOAT_BYTES * width) for width in _WIDTHS}
    return [replace(base, width=width, rows=rows[width]) for width in _WIDTHS]


def _skew(base: Case, full: bool) -> list[Case]:
    laws = ("uniform", "zipf0.5", "zipf0.8", "zipf1.05", "zipf1.2", "zipf1.5", "same")
    return [replace(base, skew=law) for law in (laws if full else laws[::3])]


def _pooling(base: Case, full: bool) -> list[Case]:
    sizes = (1, 3, 10, 30, 100) if full else (1, 10, 100)
    return [replace(base, pooling=size, lookups=base.bags * size) for size in sizes]


def _threads(base: Case, full: bool) -> list[Case]:
    del full
    most = runtime.num_threads()
    counts = sorted({most, *(2**n for n in range(most.bit_length()))})
    return [replace(base, threads=count) for count in counts]


AXES: Mapping[str, Axis] = {
    "rows": Axis(_rows, _ALL),
    "lookups": Axis(_lookups),
    "width": Axis(_width),
    "skew": Axis(_skew),
    "pooling": Axis(_pooling),
    "threads": Axis(_threads),
}
BRIEF = ("rows", "lookups", "width")


def plan(
    base: Case | None = None,
    axes: Sequence[str] | None = None,
    formulas: Sequence[str] | None = None,
    *,
    full: bool = False,
) -> list[Item]:
    """Return the cases to measure.

    Parameters
    ----------
    base : Case, optional
        Values of the axes that are not swept; by default a million rows of width 16 and 2,048
        uniform ids.
    axes : sequence of str, optional
        Names in `AXES`; by default rows, lookups and width, or all with `full`.
    formulas : sequence of str, optional
        Names in `sparsetrain.optim.OPTIMIZERS`; by default SGD, and Adagrad over rows, or with
        `full` five over rows and SGD elsewhere.
    full : bool
        Every axis to its ends, on all arms.

    Raises
    ------
    ConfigError
        If an axis is unknown.
    """
    base = base or Case(1_000_000)
    chosen = axes or (tuple(AXES) if full else BRIEF)
    for name in chosen:
        if name not in AXES:
            raise ConfigError(f"compare: sweep is one of {', '.join(AXES)}, not {name!r}")
    items = []
    for name in chosen:
        axis = AXES[name]
        for formula in formulas or _formulas(name, full):
            arms = _ALL if full else axis.arms
            cases = axis.cases(replace(base, formula=formula), full)
            items += [Item(name, case, arms) for case in cases]
    return items


def _formulas(axis: str, full: bool) -> tuple[str, ...]:
    if axis != "rows":
        return ("sgd",)
    return FORMULAS if full else ("sgd", "adagrad")
