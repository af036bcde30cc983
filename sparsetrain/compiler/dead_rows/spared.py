# SPDX-License-Identifier: Apache-2.0
"""`Spared`: an operator that computes fewer rows, and the operations that this saves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tvm_ffi import structural_equal

from sparsetrain.compiler.shape_constraints import value_of
from sparsetrain.ops.operand_shapes import format_shape


class Spared(NamedTuple):
    """An operator that computes fewer rows.

    Attributes
    ----------
    operator : str
    read, rows : int or expression
        Number of rows that it computes, and number of all rows.
    flops : int
        Multiplications and additions per row, counted for products only.
    """

    operator: str
    read: Any
    rows: Any
    flops: int

    def saved(self, extents: Mapping[str, int]) -> int:
        """Return how many multiplications and additions it saves, given the values of symbols."""
        fewer = value_of(self.rows - self.read, extents)
        return 0 if fewer is None else self.flops * fewer


def describe(spared: Iterable[Spared]) -> Iterator[str]:
    """Yield one line for each group of operators that compute the same number of rows."""
    groups: list[list[Spared]] = []
    for each in spared:
        group = next((g for g in groups if _same_rows(g[0], each)), None)
        if group is None:
            groups.append([each])
        else:
            group.append(each)
    for group in groups:
        read, rows = (format_shape([extent]) for extent in (group[0].read, group[0].rows))
        flops = sum(each.flops for each in group)
        products = f": {flops:,} FLOPs spared for each of the others" if flops else ""
        names = ", ".join(dict.fromkeys(each.operator.rpartition(".")[-1] for each in group))
        yield f"  {len(group)} operators on {read} of {rows} rows{products} ({names})"


def _same_rows(left: Spared, right: Spared) -> bool:
    return bool(structural_equal([left.read, left.rows], [right.read, right.rows]))
