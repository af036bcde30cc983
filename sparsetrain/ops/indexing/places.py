# SPDX-License-Identifier: Apache-2.0
"""Place of an id along an axis, and the value read for an id without one.

As in NumPy a negative id counts from the end. An id that is still outside reads as NaN, as `False`
for booleans, and as the lowest integer (of unsigned ones the highest): such a number is outside
every axis when it is used as an id itself. This is what `jax.numpy` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm import te, tirx


class Place(NamedTuple):
    """An index along an axis, and whether it may be used."""

    index: Any
    inside: Any


def place(ids: te.Tensor, where: Sequence[Any], extent: Any, *, from_end: bool = True) -> Place:
    """What ``ids[where]`` stands for along an axis of `extent` elements.

    Parameters
    ----------
    ids : te.Tensor
        Of whole numbers; TVM takes unsigned ones for `take` alone.
    where : sequence of expression
    extent : expression
    from_end : bool
        Whether ids below 0 count from the end; otherwise they are outside.
    """
    index = tirx.Cast("int64", ids(*where))
    if from_end:
        index = tirx.Select(index < 0, index + extent, index)
    return Place(index, tirx.all(index >= 0, index < extent))


def read(x: te.Tensor, index: Sequence[Any], inside: Sequence[Any]) -> Any:
    """``x[index]`` where all of `inside` hold; not touched elsewhere."""
    outside = tirx.const(_nothing(str(x.dtype)), x.dtype)
    return tirx.if_then_else(tirx.all(*inside), x(*index), outside)


def _nothing(dtype: str) -> Any:
    if dtype == "bool":
        return False
    if "float" in dtype:
        return float("nan")
    return tirx.max_value(dtype).value if dtype.startswith("uint") else tirx.min_value(dtype).value
