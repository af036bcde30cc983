# SPDX-License-Identifier: Apache-2.0
"""Shape constraints between operands that TVM does not check.

Relax refuses static extents that differ. If two extents are different symbols, some operators
assume that they are equal, and their kernels then access memory past the end of the shorter
operand. Other operators return a result without a shape, and later passes fail silently. This
module lists the former, which `compiler.shape_constraints` checks in every call, and refuses the
latter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import reduce
from itertools import pairwise
from operator import mul
from typing import Any, NamedTuple

from tvm import relax, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_equal

from sparsetrain.errors import ConfigError


class Pair(NamedTuple):
    """Two extents: the first must equal the second or, with `at_most`, not exceed it."""

    left: Any
    right: Any
    at_most: bool = False


def required_pairs(call: relax.Expr) -> list[Pair]:
    """Return the pairs of extents that an operator relates; none if a shape is unknown."""
    rule = _PAIRS.get(name_of(call))
    if rule is None or None in (shapes := [shape_of(operand) for operand in operands(call)]):
        return []
    return rule(call, *shapes)


def describe_call(call: relax.Expr) -> str:
    """Return an operator and the shapes of its operands, for a message."""
    shapes = [shape_of(operand) for operand in operands(call)]
    *first, last = [f"({format_shape(shape)})" for shape in shapes if shape is not None]
    return f"{name_of(call)} of {', '.join(first)}{' and ' if first else ''}{last}"


def require_shapes(bindings: Iterable[Any]) -> None:
    """Refuse a result of unknown shape if all operands have known shapes.

    Raises
    ------
    ConfigError
        If there is one; the message names the operator and the shapes of its operands.
    """
    for binding in bindings:
        if isinstance(binding.value, relax.Call) and _has_lost_shape(binding):
            raise ConfigError(
                f"{describe_call(binding.value)}: the shape of the result is unknown; give "
                "equal lengths one symbol, or reshape one operand to the symbols of the other"
            )


def require_plain_shapes(bindings: Iterable[Any]) -> None:
    """Refuse a slice to a symbolic end of unknown sign: TVM cannot copy such a shape.

    Raises
    ------
    ConfigError
        If there is one; the message names the operator and the fix.
    """
    for binding in bindings:
        shape = shape_of(binding.var) if isinstance(binding.var.ty, relax.TensorType) else None
        if any("if_then_else" in str(extent) for extent in shape or ()):
            raise ConfigError(
                f"{name_of(binding.value)}: no derivative of a slice with a symbolic "
                "bound that may be below 0; use op.strided_slice(..., "
                "assume_inbound=True), which is checked in every call"
            )


def _has_lost_shape(binding: Any) -> bool:
    ty, name = binding.var.ty, name_of(binding.value)
    results = ty.fields if isinstance(ty, relax.TupleType) else [ty]
    if not any(isinstance(t, relax.TensorType) and t.shape is None for t in results):
        return False
    shapes = [shape_of(operand) for operand in operands(binding.value)]
    # Shapes of some results depend on values, or on called functions.
    is_known_later = not name or name.startswith(("relax.dynamic", "relax.call_", "relax.invoke_"))
    return len(shapes) > 1 and None not in shapes and not is_known_later


def name_of(call: relax.Expr) -> str:
    """Return the name of a call's operator; "" if there is none."""
    return str(getattr(getattr(call, "op", None), "name", ""))


def operands(call: relax.Call) -> list[Any]:
    """Return the types of a call's tensor arguments, including those in tuples."""
    found: list[Any] = []
    for ty in (argument.ty for argument in call.args):
        fields = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
        found += [field for field in fields if isinstance(field, relax.TensorType)]
    return found


def shape_of(tensor: Any) -> list[Any] | None:
    """Return the extents of a tensor or of a tensor type; None if unknown."""
    shape = getattr(getattr(tensor, "ty", tensor), "shape", None)
    return None if shape is None else list(shape)


def format_shape(shape: Iterable[Any]) -> str:
    """Format extents for a message."""
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", ", ".join(map(str, shape)))


def _matmul(call: relax.Call, left: list, right: list) -> list[Pair]:
    return [Pair(left[-1], right[-2] if len(right) > 1 else right[0])]


def _einsum(call: relax.Call, *shapes: list) -> list[Pair]:
    """Pair axes with the same letter, except axes of length 1, which broadcast."""
    letters = str(call.attrs["subscripts"]).replace(" ", "").partition("->")[0].split(",")
    first: dict[str, Any] = {}
    found = []
    for written, shape in zip(letters, shapes, strict=False):
        before, dots, after = written.partition("...")
        repeated = range(len(shape) - len(before + after), 0, -1) if dots else ()  # from the last
        own = [*before, *map(str, repeated), *after]
        if len(own) == len(shape):
            axes = [(letter, n) for letter, n in zip(own, shape, strict=True) if not is_one(n)]
            found += [Pair(n, first.setdefault(letter, n)) for letter, n in axes]
    return found


def _gather_elements(call: relax.Call, x: list, ids: list) -> list[Pair]:
    axis = int(call.attrs["axis"]) % len(x)
    sides = zip(ids, x, strict=True)
    return [Pair(n, limit, at_most=True) for place, (n, limit) in enumerate(sides) if place != axis]


def _nll_loss(call: relax.Call, x: list, targets: list, weights: Any = ()) -> list[Pair]:
    batch, classes = (x[:1], x[1]) if len(x) > 1 else ([], x[0])
    return [*_alike(call, batch + x[2:], targets), *(Pair(n, classes) for n in weights)]


def _alike(call: relax.Call, left: list, right: list) -> list[Pair]:
    return [Pair(a, b) for a, b in zip(left, right, strict=False)]


def _broadcast_to(call: relax.Call, x: list) -> list[Pair]:
    wanted = list(call.args[1].ty.values or ())
    sides = zip(reversed(x), reversed(wanted), strict=False)
    return [Pair(n, limit) for n, limit in sides if not is_one(n)]


def _embedding_bag(call: relax.Call, table: list, ids: list, *more: list) -> list[Pair]:
    return [Pair(more[1][0], ids[0])] if int(call.attrs["weighted"]) else []


def _attention(call: relax.Call, q: list, k: list, v: list, bias: Any = ()) -> list[Pair]:
    """Pair axes (B, length, heads, D), and the axes of a bias (B, heads, length of q, of k)."""
    biased = zip(bias, (q[0], q[2], q[1], k[1]), strict=False)
    return [
        *(Pair(other[axis], q[axis]) for other in (k, v) for axis in (0, 2)),
        Pair(k[3], q[3]),
        Pair(v[1], k[1]),
        *(Pair(n, wanted) for n, wanted in biased if not is_one(n)),
    ]


def _gather_nd(call: relax.Call, x: list, ids: list) -> list[Pair]:
    batch = int(call.attrs["batch_dims"])
    return _alike(call, ids[:batch], x[:batch])


def _one_batch(call: relax.Call, x: list, other: list) -> list[Pair]:
    return [Pair(other[0], x[0])]


def _squeeze(call: relax.Call, x: list) -> list[Pair]:
    one = tirx.const(1, "int64")
    return [Pair(x[int(axis)], one) for axis in call.attrs["axis"] or ()]


def _split(call: relax.Call, x: list) -> list[Pair]:
    """Require that split positions, or all parts but the last together, fit into the length."""
    places, extent = call.attrs["indices_or_sections"], x[int(call.attrs["axis"])]
    if isinstance(places, tirx.IntImm):
        parts = int(places)
        return [Pair((parts - 1) * tirx.floordiv(extent + parts - 1, parts), extent, at_most=True)]
    ends = [*list(places), extent]
    starts = [tirx.const(0, "int64"), *ends[:-1]]
    return [Pair(a, b, at_most=True) for a, b in zip(starts, ends, strict=True)]


def _strided_slice(call: relax.Call, x: list) -> list[Pair]:
    """Constrain bounds that are assumed to be inside; other bounds are clipped."""
    if not int(call.attrs["assume_inbound"]):
        return []
    axes, begins, ends, *rest = (list(getattr(given, "fields", ())) for given in call.args[1:])
    strides = rest[0] if rest else [tirx.const(1, "int64")] * len(axes)
    found = []
    for axis, begin, end, step in zip(axes, begins, ends, strides, strict=False):
        extent, least = x[int(axis)], tirx.const(0, "int64")
        bounds = (least, begin, end, extent)
        if isinstance(step, tirx.IntImm) and int(step) < 0:
            bounds = (least, end + 1, begin + 1, extent)
        found += [Pair(a, b, at_most=True) for a, b in pairwise(bounds)]
    return found


def simplified(ty: relax.Type) -> relax.Type:
    """Return a type with extents in TVM's simplest form; the same object if they already are."""
    if isinstance(ty, relax.TupleType):
        fields = [simplified(field) for field in ty.fields]
        same = all(new is old for new, old in zip(fields, ty.fields, strict=True))
        return ty if same else relax.TupleType(fields)
    shape = shape_of(ty) if isinstance(ty, relax.TensorType) else None
    if shape is None:
        return ty
    simple = [Analyzer().simplify(extent) for extent in shape]
    if structural_equal(simple, shape):
        return ty
    return relax.TensorType(simple, ty.dtype, ty.vdevice)


def is_one(extent: Any) -> bool:
    """Whether an extent is statically 1: such an axis broadcasts."""
    return isinstance(extent, (int, tirx.IntImm)) and int(extent) == 1


def is_zero(extent: Any) -> bool:
    """Whether an extent is statically 0."""
    return isinstance(extent, tirx.IntImm) and int(extent) == 0


def size_of(shape: Iterable[Any]) -> Any:
    """Return the number of elements of a tensor with these extents."""
    return reduce(mul, shape, tirx.const(1, "int64"))


_PAIRS: dict[str, Callable[..., list[Pair]]] = {
    "relax.matmul": _matmul,
    "relax.einsum": _einsum,
    "relax.gather_elements": _gather_elements,
    "relax.broadcast_to": _broadcast_to,
    "relax.nn.nll_loss": _nll_loss,
    "relax.nn.cross_entropy_with_logits": _alike,
    "relax.nn.attention": _attention,
    "relax.nn.attention_bias": _attention,
    "relax.gather_nd": _gather_nd,
    "relax.split": _split,
    "relax.squeeze": _squeeze,
    "relax.strided_slice": _strided_slice,
    "relax.sparsetrain.embedding_bag": _embedding_bag,
    "relax.sparsetrain.interaction": _one_batch,
}
