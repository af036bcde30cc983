# SPDX-License-Identifier: Apache-2.0
"""Table of the operators that compute row by row, with the rows of operands that they need.

A rule's `needs` takes the rows of a call's result that are read. It returns for each argument the
axis along which the same rows are needed, or None if the whole argument is. If it returns None
instead of a list, the call needs all its arguments whole, like an operator without a rule.
`rebuild` makes the call on the selected rows only. Selected rows are always a matrix (rows, last
axis), whatever the shape of the whole value.

Each rule has a line in ``tests/compiler/test_dead_rows.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from tvm import relax, tirx
from tvm.relax import op
from tvm.sym import Analyzer
from tvm_ffi import structural_equal

from sparsetrain.ad.cotangent import emit
from sparsetrain.backend import current
from sparsetrain.compiler.dead_rows.selection import Selection, Tokens
from sparsetrain.ops.operand_shapes import is_one, shape_of, size_of
from sparsetrain.ops.ragged import operators as ragged
from sparsetrain.ops.ragged.attention_kernels import attention_kernel
from sparsetrain.ops.ragged.silu_attention_kernels import silu_attention_kernel


class Rows(NamedTuple):
    """The rows of a value that are read, along an axis other than the last."""

    axis: int
    of: Selection

    def along(self, axis: int) -> Rows:
        """Return the same rows along a different axis."""
        return self._replace(axis=axis)

    def same(self, other: Any) -> bool:
        """Whether `other` selects the same rows along the same axis."""
        return isinstance(other, Rows) and (self.axis, self.of.key) == (other.axis, other.of.key)

    def shape(self, whole: Sequence[Any]) -> list[Any]:
        """Return the shape of the selected rows, given the shape of the whole value."""
        return [self.of.count if n == self.axis else extent for n, extent in enumerate(whole)]


class Operand:
    """An argument of a call: the whole value, or selected rows as a matrix."""

    def __init__(self, given: relax.Expr, rows: relax.Expr | None, shape: list[Any]) -> None:
        self.given, self.shape, self._rows = given, shape, rows

    @property
    def is_selected(self) -> bool:
        """Whether the operand holds selected rows only."""
        return self._rows is not None

    @property
    def rows(self) -> relax.Expr:
        """The matrix of selected rows, or the whole operand."""
        return self.given if self._rows is None else self._rows

    @cached_property
    def value(self) -> relax.Expr:
        """The selected rows (or all), with all axes of the operand."""
        if self._rows is None or len(self.shape) == 2:
            return self.rows
        return emit(op.reshape(self._rows, self.shape))


class RowRule(NamedTuple):
    """A rule for one operator: the rows it needs, the call on these rows, the cost of a row.

    Attributes
    ----------
    needs : callable
        ``needs(call, rows) -> [axis or None for each argument]``; or None if the call cannot run on
        these rows only.
    rebuild : callable
        ``rebuild(call, rows, operands) -> the selected rows of the result, as a matrix``.
    flops : callable
        ``flops(call) -> multiplications and additions per row``; 0 for all but products.
    any_axis : bool
        Whether the rows may also run along the last axis of the result.
    """

    needs: Callable[[Any, Rows], list[int | None] | None]
    rebuild: Callable[[Any, Rows, list[Operand]], relax.Expr]
    flops: Callable[[Any], int] = lambda call: 0
    any_axis: bool = False


RULES: dict[str, RowRule] = {}


def again(call: Any, arguments: Sequence[relax.Expr]) -> relax.Expr:
    """Call the same operator with new arguments."""
    return relax.Call(call.op, list(arguments), call.attrs, call.ty_args)


def as_matrix(value: relax.Expr) -> relax.Expr:
    """Reshape rows of any shape to a matrix."""
    *leading, last = _shape(value)
    return value if len(leading) == 1 else op.reshape(value, [size_of(leading), last])


def _shape(value: Any) -> list[Any]:
    return [*value.ty.shape]


def _register(names: str, rule: RowRule) -> None:
    RULES.update({f"relax.{name}": rule for name in names.split()})


# --- Elementwise -------------------------------------------------------------------------------


def _aligned(call: Any, rows: Rows) -> list[int | None]:
    """Need rows of each operand, but all of an operand that broadcasts along their axis."""
    found: list[int | None] = []
    for operand in call.args:
        shape = shape_of(operand) or []  # a scalar constant has no shape
        axis = rows.axis - (call.ty.ndim - len(shape))
        found.append(None if axis < 0 or is_one(shape[axis]) else axis)
    return found


def _finite(call: Any, rows: Rows) -> list[int | None] | None:
    """Like `_aligned`, for operators with a pole at 0: None if a selected row may be all zeros."""
    return None if rows.of.has_zeros else _aligned(call, rows)


def _elementwise(call: Any, rows: Rows, operands: list[Operand]) -> relax.Expr:
    wanted = rows.shape(_shape(call))
    if all(_fits(operand, wanted) for operand in operands):
        return again(call, [operand.rows for operand in operands])
    values = emit(again(call, [operand.value for operand in operands]))
    return as_matrix(values)


def _fits(operand: Operand, wanted: list[Any]) -> bool:
    """Whether an operand also broadcasts against the matrix of selected rows."""
    if not operand.is_selected:
        return len(operand.shape) <= 1
    return len(operand.shape) == len(wanted) and all(map(_equal, operand.shape, wanted))


def _equal(left: Any, right: Any) -> bool:
    left, right = (int(n) if isinstance(n, tirx.IntImm) else n for n in (left, right))
    return bool(structural_equal(left, right))


_register(
    "add subtract multiply maximum minimum negative abs square exp sin cos tanh erf sigmoid clip "
    "astype where greater greater_equal less less_equal equal not_equal logical_and logical_or "
    "logical_not nn.relu nn.silu nn.gelu nn.gelu_tanh nn.leakyrelu nn.softplus",
    RowRule(_aligned, _elementwise, any_axis=True),
)
_register("divide power log sqrt rsqrt log_add_exp", RowRule(_finite, _elementwise, any_axis=True))


# --- Along the last axis -----------------------------------------------------------------------


def _first_alone(call: Any, rows: Rows) -> list[int | None]:
    return [rows.axis, *[None] * (len(call.args) - 1)]


def _last_axis(call: Any, rows: Rows) -> list[int | None] | None:
    """Need rows of the first argument if the call reduces or normalizes only the last axis."""
    name, ndim = call.op.name, call.args[0].ty.ndim
    axes = call.attrs["axes" if name.endswith("_norm") else "axis"]
    axes = [axes] if isinstance(axes, int) else axes or ()
    if [int(axis) % ndim for axis in axes] != [ndim - 1]:
        return None
    if name in _SUMS and not call.attrs["keepdims"]:
        return None
    return _first_alone(call, rows)


def _on_matrix(call: Any, rows: Rows, operands: list[Operand]) -> relax.Expr:
    """Make the same call on the matrix, along its last axis."""
    first, *others = (operand.rows for operand in operands)
    name, attrs = call.op.name, call.attrs
    if name == "relax.nn.layer_norm":
        settings = float(attrs["epsilon"]), bool(attrs["center"]), bool(attrs["scale"])
        return op.nn.layer_norm(first, *others, [-1], *settings)
    if name == "relax.nn.rms_norm":
        return op.nn.rms_norm(first, *others, [-1], float(attrs["epsilon"]))
    if name.startswith("relax.nn."):
        return getattr(op.nn, name.rpartition(".")[-1])(first, -1)
    return getattr(op, name.rpartition(".")[-1])(first, [-1], True)


_SUMS = ("relax.sum", "relax.mean", "relax.max", "relax.min")
_register(
    "nn.layer_norm nn.rms_norm nn.softmax nn.log_softmax sum mean max min",
    RowRule(_last_axis, _on_matrix),
)


def _split(call: Any, rows: Rows) -> list[int | None] | None:
    last = int(call.attrs["axis"]) % call.args[0].ty.ndim == call.args[0].ty.ndim - 1
    return [rows.axis] if last else None


def _split_matrix(call: Any, rows: Rows, operands: list[Operand]) -> relax.Expr:
    return op.split(operands[0].rows, call.attrs["indices_or_sections"], 1)


_register("split", RowRule(_split, _split_matrix))


def _concat(call: Any, rows: Rows) -> list[int | None] | None:
    """Need rows of every field of the tuple if the fields are concatenated along the last axis."""
    last = int(call.attrs["axis"] or 0) % call.ty.ndim == call.ty.ndim - 1
    return [rows.axis] * len(call.args[0].ty.fields) if last else None


def _concat_matrices(call: Any, rows: Rows, operands: list[Operand]) -> relax.Expr:
    return op.concat([operand.rows for operand in operands], 1)


_register("concat", RowRule(_concat, _concat_matrices))


# --- Products, lookups, dropout ----------------------------------------------------------------

# With fewer rows than this, if static, TVM's product kernels sum in a different order.
_FEWEST_ROWS = 4


def _product(call: Any, rows: Rows) -> list[int | None] | None:
    """Need rows of the left operand if the right operand is a matrix, such as a weight."""
    x, weight = call.args
    if weight.ty.ndim != 2 or x.ty.ndim < 2:
        return None
    read = Analyzer().simplify(size_of(rows.shape(_shape(x))[:-1]))
    if _are_few(read) or _are_few(x.ty.shape[-2]):
        return None
    return [rows.axis, None]


def _are_few(count: Any) -> bool:
    return isinstance(count, tirx.IntImm) and int(count) < _FEWEST_ROWS


def _multiply(call: Any, rows: Rows, operands: list[Operand]) -> relax.Expr:
    return again(call, [operand.rows for operand in operands])


def _flops_of_product(call: Any) -> int:
    extents = _shape(call.args[1])
    known = all(isinstance(extent, tirx.IntImm) for extent in extents)
    return 2 * prod(map(int, extents)) if known else 0


_register("matmul", RowRule(_product, _multiply, _flops_of_product))


def _lookup(call: Any, rows: Rows) -> list[int | None] | None:
    """Need rows of the ids."""
    by_rows = call.op.name != "relax.take" or int(call.attrs["axis"] or 0) == 0
    table, ids = call.args
    return [None, rows.axis] if by_rows and table.ty.ndim == 2 and ids.ty.ndim else None


def _look_up(call: Any, rows: Rows, operands: list[Operand]) -> relax.Expr:
    table, ids = operands
    flat = ids.rows if ids.rows.ty.ndim == 1 else emit(op.reshape(ids.rows, [size_of(ids.shape)]))
    return again(call, [table.given, flat])


_register("sparsetrain.lookup take", RowRule(_lookup, _look_up))


def _dropout(call: Any, rows: Rows) -> list[int | None] | None:
    inner = _shape(call)[1:-1]
    known = all(isinstance(extent, tirx.IntImm) for extent in inner)
    return [rows.axis, None, None] if call.ty.ndim > 1 and known else None


def _drop(call: Any, rows: Rows, operands: list[Operand]) -> relax.Expr:
    """Compute the mask from each row's number in the whole batch."""
    x, key, first = operands
    numbers = emit(rows.of.take(_numbers(_shape(call)[:-1], first.given), rows.axis))
    if numbers.ty.ndim > 1:
        numbers = emit(op.reshape(numbers, [x.rows.ty.shape[0]]))
    return again(call, [x.rows, key.given, numbers])


def _numbers(leading: list[Any], first: relax.Expr) -> relax.Expr:
    """Return each row's number for dropout's hash, in the shape of the leading axes."""
    numbers = first
    if is_one(first.ty.shape[0]):
        numbers = emit(op.add(emit(op.arange(0, leading[0], 1, "int64")), first))
    for extent in leading[1:]:
        firsts = emit(op.multiply(numbers, relax.const(int(extent), "int64")))
        outer = emit(op.expand_dims(firsts, -1))
        numbers = emit(op.add(outer, emit(op.arange(0, extent, 1, "int64"))))
    return numbers


_register("sparsetrain.dropout", RowRule(_dropout, _drop))


# --- Ragged rows -------------------------------------------------------------------------------


def _of_these_tokens(rows: Rows, ends: relax.Expr) -> bool:
    """Whether the selection takes tokens of ragged rows with the same ends."""
    return isinstance(rows.of, Tokens) and rows.axis == 0 and rows.of.ends.same_as(ends)


def _expanded(call: Any, rows: Rows) -> list[int | None] | None:
    """Need all row vectors, because each token gets the vector of its row; no token is read."""
    return [None, None, None] if _of_these_tokens(rows, call.args[1]) else None


def _expand(call: Any, rows: Rows, operands: list[Operand]) -> relax.Expr:
    assert isinstance(rows.of, Tokens)
    return rows.of.expand(operands[0].given)


_register("sparsetrain.ragged_expand", RowRule(_expanded, _expand))


def _attention(call: Any, rows: Rows) -> list[int | None] | None:
    """Need rows of the queries and of the factors per token, and all keys and values."""
    q, k, v, ends, *factors = call.args
    has_kernel = current().kernel("ragged_attention_at", attention_kernel) is not None
    fits = has_kernel and _of_these_tokens(rows, ends)
    return [0, None, None, None, *[0] * len(factors)] if fits else None


def _attend(call: Any, rows: Rows, operands: list[Operand]) -> relax.Expr:
    assert isinstance(rows.of, Tokens)
    q, k, v, ends, *factors = (operand.rows for operand in operands)
    make = ragged.scaled_attention_at if factors else ragged.attention_at
    return make(q, k, v, ends, rows.of.places, rows.of.place_ends, *factors, **_attrs(call))


def _attrs(call: Any) -> dict[str, Any]:
    return {name: call.attrs[name] for name in ("heads", "causal", "scale")}


_register(
    "sparsetrain.ragged_attention sparsetrain.ragged_scaled_attention", RowRule(_attention, _attend)
)


def _silu_attention(call: Any, rows: Rows) -> list[int | None] | None:
    has_kernel = current().kernel("ragged_silu_attention_at", silu_attention_kernel) is not None
    fits = has_kernel and _of_these_tokens(rows, call.args[4])
    return [0, None, None, 0, None] if fits else None


def _attend_by_silu(call: Any, rows: Rows, operands: list[Operand]) -> relax.Expr:
    assert isinstance(rows.of, Tokens)
    q, k, v, bias, ends = (operand.rows for operand in operands)
    places = rows.of.places, rows.of.place_ends
    return ragged.silu_attention_at(q, k, v, bias, ends, *places, **_attrs(call))


_register("sparsetrain.ragged_silu_attention", RowRule(_silu_attention, _attend_by_silu))
