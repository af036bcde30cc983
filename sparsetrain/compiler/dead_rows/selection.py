# SPDX-License-Identifier: Apache-2.0
"""Selections of rows: a slice, constant indices, or tokens of ragged rows.

A selection begins at an operator that reads only some rows of a value along an axis. It then also
applies to the values from which this value is computed. A selection never has more rows than the
value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ops import ragged
from sparsetrain.ops.operand_shapes import is_zero


class Selection(ABC):
    """Some of the rows along one axis; selections with an equal `key` select the same rows.

    Attributes
    ----------
    count : int or expression
        Number of selected rows.
    has_zeros : bool
        Whether zeros may stand in for a row, such as for the last token of an empty ragged row.
    """

    key: tuple[Any, ...]
    count: Any
    has_zeros = False

    @abstractmethod
    def take(self, x: relax.Expr, axis: int) -> relax.Expr:
        """Return the selected rows of a value, along its `axis`."""

    def result(self, rows: relax.Expr, call: relax.Call) -> relax.Expr:
        """Return the selecting operator's result, given the selected rows of its operand."""
        return op.reshape(rows, call.ty.shape)


class Slice(Selection):
    """``x[begin:end:stride]``."""

    def __init__(self, begin: int, end: int, stride: int, count: int, inside: bool) -> None:
        self.key, self.count = ("slice", begin, end, stride, inside), count
        self._bounds, self._inside = (begin, end, stride), inside

    def take(self, x: relax.Expr, axis: int) -> relax.Expr:
        """See `Selection`."""
        bounds = ([bound] for bound in self._bounds)
        return op.strided_slice(x, [axis], *bounds, assume_inbound=self._inside)


class Places(Selection):
    """``x[places]`` with constant indices, fewer than x has rows."""

    def __init__(self, ids: relax.Expr, mode: str, count: int) -> None:
        self.key, self.count = ("places", *ids.value.numpy().reshape(-1).tolist()), count
        self._ids, self._mode = ids, mode

    def take(self, x: relax.Expr, axis: int) -> relax.Expr:
        """See `Selection`."""
        ids = self._ids if self._ids.ty.ndim == 1 else emit(op.reshape(self._ids, [self.count]))
        return op.take(x, ids, axis, self._mode)


class Tokens(Selection):
    """M selected tokens of ragged rows; `places` (M,) are their positions within their rows.

    Row b selects ``places[place_ends[b - 1]:place_ends[b]]``. A subclass implements how to read
    the selected tokens from all tokens (N, D).
    """

    ends: relax.Var
    places: relax.Expr
    place_ends: relax.Expr

    @abstractmethod
    def read(self, tokens: relax.Expr) -> relax.Expr:
        """Take the selected tokens: (N, D) -> (M, D)."""

    @abstractmethod
    def expand(self, rows: relax.Expr) -> relax.Expr:
        """Repeat each row's vector for its selected tokens: (B, D) -> (M, D)."""

    @property
    @abstractmethod
    def numbers(self) -> relax.Expr:
        """The index of each selected token among all tokens, (M,) int64."""

    def take(self, x: relax.Expr, axis: int) -> relax.Expr:
        """See `Selection`; `axis` must be 0."""
        assert axis == 0
        if "float" not in str(x.ty.dtype):
            return op.take(x, self.numbers, 0, "clip")
        rest = [*x.ty.shape][1:]
        if len(rest) == 1:
            return self.read(x)
        rows = self.read(emit(op.reshape(x, [x.ty.shape[0], -1 if rest else 1])))
        return op.reshape(emit(rows), [self.count, *rest])


class Last(Tokens):
    """The last token of each row."""

    has_zeros = True

    def __init__(self, ends: relax.Var) -> None:
        self.key, self.ends, self.count = ("last", ends), ends, ends.ty.shape[0]

    def read(self, tokens: relax.Expr) -> relax.Expr:
        """See `Tokens`; the result is zeros for a row without tokens."""
        return ragged.ragged_last(tokens, self.ends)

    def expand(self, rows: relax.Expr) -> relax.Expr:
        """See `Tokens`."""
        return rows

    @cached_property
    def places(self) -> relax.Expr:
        """See `Tokens`; the place is -1 for a row without tokens."""
        return emit(op.subtract(self.numbers, starts_of(self.ends)))

    @cached_property
    def place_ends(self) -> relax.Expr:
        """See `Tokens`; each row selects one token."""
        return emit(op.arange(1, self.count + 1, 1, "int64"))

    @cached_property
    def numbers(self) -> relax.Expr:
        """See `Tokens`; the index is arbitrary for a row without tokens."""
        return emit(op.subtract(self.ends, _number(1)))

    def result(self, rows: relax.Expr, call: relax.Call) -> relax.Expr:
        """Return the selected rows, with zeros for ragged rows without tokens."""
        return ragged.ragged_nonempty(rows, self.ends)


class Taken(Tokens):
    """The tokens at given places within their rows."""

    def __init__(self, ends: relax.Var, places: relax.Var, place_ends: relax.Var) -> None:
        self.key = "tokens", ends, places, place_ends
        self.ends, self.places, self.place_ends = ends, places, place_ends
        self.count = places.ty.shape[0]

    def read(self, tokens: relax.Expr) -> relax.Expr:
        """See `Tokens`."""
        return ragged.ragged_take(tokens, self.ends, self.places, self.place_ends)

    def expand(self, rows: relax.Expr) -> relax.Expr:
        """See `Tokens`."""
        return ragged.ragged_expand(rows, self.place_ends, self._column)

    @cached_property
    def _column(self) -> relax.Expr:
        return emit(op.expand_dims(self.places, 1))

    @cached_property
    def numbers(self) -> relax.Expr:
        """See `Tokens`."""
        starts = emit(op.expand_dims(starts_of(self.ends), 1))
        return emit(op.squeeze(emit(op.add(emit(self.expand(starts)), self._column)), [1]))

    def result(self, rows: relax.Expr, call: relax.Call) -> relax.Expr:
        """See `Selection`."""
        return rows


def starts_of(ends: relax.Expr) -> relax.Expr:
    """Return the index of each row's first token, (B,) int64, given the rows' ends."""
    others = emit(op.strided_slice(ends, [0], [0], [ends.ty.shape[0] - 1], assume_inbound=True))
    return emit(op.concat([relax.const([0], "int64"), others], 0))


def _number(value: int) -> relax.Expr:
    return relax.const(value, "int64")


# --- Where a selection begins ------------------------------------------------------------------


def selection_of(call: Any) -> tuple[Selection, int] | None:
    """Return the rows of its first argument that a call reads and their axis, or None if all."""
    begin = _BEGINS.get(getattr(getattr(call, "op", None), "name", ""))
    return begin(call) if begin is not None else None


def _slice(call: Any) -> tuple[Selection, int] | None:
    """Select the rows of a slice of one axis with static bounds, if it reads fewer than all."""
    x, *bounds = call.args
    given = [_int(each.fields[0]) for each in bounds if len(each.fields) == 1]
    if len(given) < len(bounds) or None in given:
        return None
    axis, begin, end, stride = (int(each or 0) for each in (*given, 1)[:4])
    count = _fewer(x, axis, call.ty.shape[axis])
    if count is None or stride < 1:
        return None
    inside = bool(call.attrs["assume_inbound"])  # if true, bounds are not clipped to the length
    return Slice(begin, end, stride, count, inside), axis % x.ty.ndim


def _take(call: Any) -> tuple[Selection, int] | None:
    """Select rows by constant ids along an axis of static length; other ids may outnumber rows."""
    x, ids = call.args
    if not isinstance(ids, tvm.ir.GenericConst) or ids.ty.ndim > 1:
        return None
    axis = int(call.attrs["axis"] or 0) % x.ty.ndim
    numbers = np.atleast_1d(ids.value.numpy())
    count = _fewer(x, axis, tirx.IntImm("int64", len(numbers)))
    extent = x.ty.shape[axis]
    if count is None or not isinstance(extent, tirx.IntImm):
        return None
    inside = (numbers >= -int(extent)).all() and (numbers < int(extent)).all()
    return (Places(ids, str(call.attrs["mode"]), count), axis) if inside else None


def _fewer(x: relax.Expr, axis: int, count: Any) -> int | None:
    """Return how many rows are read, or None if the number is unknown or may be all rows."""
    extent = x.ty.shape[axis]
    if not isinstance(count, tirx.IntImm) or any(map(is_zero, x.ty.shape)):
        return None
    fewer = not isinstance(extent, tirx.IntImm) or int(count) < int(extent)
    return int(count) if fewer and int(count) else None


def _int(value: Any) -> int | None:
    value = getattr(value, "value", value)
    return int(value) if isinstance(value, (int, tirx.IntImm)) else None


def _of_vars(make: Any) -> Any:
    def begin(call: Any) -> tuple[Selection, int] | None:
        given: Sequence[Any] = call.args[1:]
        return (make(*given), 0) if all(isinstance(each, relax.Var) for each in given) else None

    return begin


_BEGINS = {
    "relax.strided_slice": _slice,
    "relax.take": _take,
    "relax.sparsetrain.ragged_last": _of_vars(Last),
    "relax.sparsetrain.ragged_take": _of_vars(Taken),
}
