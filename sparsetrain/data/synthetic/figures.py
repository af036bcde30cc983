# SPDX-License-Identifier: Apache-2.0
"""Statistics of Criteo's columns, read from `criteo_figures.json`.

Aggregates only: which columns go missing together and how often, quantiles of the integers, the
mass of the commonest categories, and how many categories there are.
"""

import json
from functools import cache
from importlib import resources
from typing import NamedTuple

INTEGERS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))


class MissingGroup(NamedTuple):
    """Columns that are null in the same rows, in a share `rate` of all rows."""

    columns: tuple[str, ...]
    rate: float


class IntegerFigures(NamedTuple):
    """Share of negative and of zero among the values present, and quantiles of the others."""

    negative: float
    zero: float
    levels: tuple[float, ...]
    quantiles: tuple[float, ...]


class CategoryFigures(NamedTuple):
    """Distinct values, the exponent of the tail, and the mass of the first `ranks[i]` values."""

    values: int
    tail: float | None
    ranks: tuple[int, ...]
    masses: tuple[float, ...]


class Figures(NamedTuple):
    """Everything known of the data's shape, columns in their usual order."""

    missing: tuple[MissingGroup, ...]
    integers: dict[str, IntegerFigures]
    categories: dict[str, CategoryFigures]


@cache
def load() -> Figures:
    """Read the figures that come with the package."""
    text = resources.files(__package__).joinpath("criteo_figures.json").read_text("utf-8")
    raw = json.loads(text)
    levels, ranks = tuple(raw["quantile_levels"]), raw["head_ranks"]
    return Figures(
        tuple(MissingGroup(tuple(columns), rate) for columns, rate in raw["missing_together"]),
        {
            name: IntegerFigures(c["negative"], c["zero"], levels, tuple(c["positive"]))
            for name, c in raw["integers"].items()
        },
        {
            name: CategoryFigures(
                c["values"], c["tail"], tuple(ranks[: len(c["head"])]), tuple(c["head"])
            )
            for name, c in raw["categories"].items()
        },
    )
