# SPDX-License-Identifier: Apache-2.0
"""Operators of random programs: what each can be applied to, its value in Relax, and in NumPy.

Kinks and poles are kept out by what an operator is applied to, as in `log(1 + x * x)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import special
from tvm import relax
from tvm.relax import op

from sparsetrain import ad
from sparsetrain.embedding import embedding_bag, lookup

if TYPE_CHECKING:
    from tests.random_programs import Scope

Extent = int | str  # a number, or a letter or expression of letters
Shape = tuple[Extent, ...]

TABLES = {"items": (9, 4), "users": (6, 3), "wide": (7, 8)}
LEAST_ROWS = min(rows for rows, _ in TABLES.values())
IDS: dict[str, Shape] = {"each": ("B",), "pairs": ("B", 2), "history": ("B", "L")}


class Operator(NamedTuple):
    """Draws a choice and a shape for arguments, or None; the value in Relax, and in NumPy.

    Relax and NumPy get the arguments, the choice, and what a `Scope` knows.
    """

    arity: int
    draw: Callable[[np.random.Generator, list[Shape]], tuple[Any, Shape] | None]
    relax: Callable[..., relax.Expr]
    numpy: Callable[..., np.ndarray]


def _same(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape]:
    return None, shapes[0]


def _unary(in_relax: Callable, in_numpy: Callable) -> Operator:
    return Operator(1, _same, lambda s, c, x: in_relax(x), lambda s, c, x: in_numpy(x))


def _softmax(x: np.ndarray) -> np.ndarray:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def _broadcast(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    longer, shorter = sorted(shapes, key=len, reverse=True)
    padded = (1,) * (len(longer) - len(shorter)) + shorter
    found = []
    for a, b in zip(longer, padded, strict=True):
        if a != b and 1 not in (a, b):
            return None
        found.append(b if a == 1 else a)
    return None, tuple(found)


def _binary(in_relax: Callable, in_numpy: Callable) -> Operator:
    return Operator(
        2, _broadcast, lambda s, c, x, y: in_relax(x, y), lambda s, c, x, y: in_numpy(x, y)
    )


def _axis(rng: np.random.Generator, shape: Shape) -> int | None:
    return int(rng.integers(len(shape))) if shape else None


def _draw_reduction(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    axis = _axis(rng, shapes[0])
    if axis is None:
        return None
    keep = bool(rng.integers(2))
    shape = tuple(1 if n == axis else e for n, e in enumerate(shapes[0]) if keep or n != axis)
    return (axis, keep), shape


def _reduction(in_relax: Callable, in_numpy: Callable) -> Operator:
    return Operator(
        1,
        _draw_reduction,
        lambda s, c, x: in_relax(x, [c[0]], c[1]),
        lambda s, c, x: in_numpy(x, axis=c[0], keepdims=c[1]),
    )


def _draw_axis(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    axis = _axis(rng, shapes[0])
    return None if axis is None else (axis, shapes[0])


def _draw_repeat(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    axes = [n for n, extent in enumerate(shapes[0]) if isinstance(extent, int)]
    if not axes:
        return None
    axis, times = int(rng.choice(axes)), int(rng.integers(1, 4))
    extent = int(shapes[0][axis]) * times
    return (axis, times), (*shapes[0][:axis], extent, *shapes[0][axis + 1 :])


def _draw_places(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    axes = [n for n, extent in enumerate(shapes[0]) if isinstance(extent, int) and extent]
    if not axes:
        return None
    axis = int(rng.choice(axes))
    extent = int(shapes[0][axis])
    places = [int(n) for n in rng.integers(-extent, extent, int(rng.integers(5)))]
    return (axis, places), (*shapes[0][:axis], len(places), *shapes[0][axis + 1 :])


def _draw_joined(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    first, second = shapes
    if len(first) != len(second) or not first:
        return None
    differing = [n for n, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    if len(differing) > 1:
        return None
    axis = differing[0] if differing else _axis(rng, first)
    assert axis is not None
    return axis, (*first[:axis], _sum(first[axis], second[axis]), *first[axis + 1 :])


def _sum(first: Extent, second: Extent) -> Extent:
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    return f"({first} + {second})"


def _draw_slice(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    axes = [n for n, extent in enumerate(shapes[0]) if isinstance(extent, int) and extent > 1]
    if not axes:
        return None
    axis = int(rng.choice(axes))
    extent = int(shapes[0][axis])
    begin = int(rng.integers(extent))
    end = int(rng.integers(begin + (rng.random() < 0.9), extent + 1))
    return (axis, begin, end), (*shapes[0][:axis], end - begin, *shapes[0][axis + 1 :])


def _in_slice(c: tuple[int, int, int]) -> tuple[slice, ...]:
    return (*[slice(None)] * c[0], slice(c[1], c[2]))


def _draw_permutation(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    if len(shapes[0]) < 2:
        return None
    order = [int(n) for n in rng.permutation(len(shapes[0]))]
    return order, tuple(shapes[0][n] for n in order)


def _draw_weight(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    if len(shapes[0]) < 2 or not isinstance(shapes[0][-1], int):
        return None
    width = int(rng.choice([1, 2, 5, 16]))
    return (shapes[0][-1], width), (*shapes[0][:-1], width)


def _draw_product(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    first, second = shapes
    if len(first) != len(second) or len(first) < 2 or first[:-2] != second[:-2]:
        return None
    if first[-1] == second[-1]:
        return True, (*first[:-1], second[-2])
    return (False, (*first[:-1], second[-1])) if first[-1] == second[-2] else None


def _draw_flat(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    if len(shapes[0]) < 2 or 0 in shapes[0]:  # TVM's reshape takes 0 for the extent as it was
        return None
    axis = int(rng.integers(len(shapes[0]) - 1))
    a, b = shapes[0][axis : axis + 2]
    both: Extent = a * b if isinstance(a, int) and isinstance(b, int) else f"({a} * {b})"
    shape = (*shapes[0][:axis], both, *shapes[0][axis + 2 :])
    return shape, shape


def _draw_expanded(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    if len(shapes[0]) > 3:
        return None
    axis = int(rng.integers(len(shapes[0]) + 1))
    return axis, (*shapes[0][:axis], 1, *shapes[0][axis:])


def _draw_lookup(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape]:
    table, ids = str(rng.choice(list(TABLES))), str(rng.choice(list(IDS)))
    return (table, ids), (*IDS[ids], TABLES[table][1])


def _draw_bag(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape]:
    table, mode = str(rng.choice(list(TABLES))), str(rng.choice(["sum", "mean"]))
    return (table, mode), ("B", 1, TABLES[table][1])


def _bag(scope: Scope, choice: tuple[str, str]) -> np.ndarray:
    table, mode = scope[choice[0]], choice[1]
    ids, offsets = scope["bag"], scope["offsets"]
    parts = [table[ids[a:b]] for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    pooled = {"sum": np.sum, "mean": np.mean}[mode]
    empty = np.zeros(table.shape[1])
    return np.stack([pooled(part, axis=0) if len(part) else empty for part in parts])[:, None]


def _draw_dense(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape]:
    shape: Shape = _DENSE[int(rng.integers(len(_DENSE)))]
    return shape, shape


_DENSE: tuple[Shape, ...] = (
    *(("B", 3), ("B", 4), ("B", "L", 4), (3,), ("B", 1)),
    *((1,), ("B", 1, 4), (1, "L", 1), ("B", 0), (0, 4)),
)


def _layer_norm(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-2)


def _in_relax_layer_norm(scope: Scope, choice: Any, x: relax.Expr) -> relax.Expr:
    width = int(x.ty.shape[-1])
    one, zero = (relax.const(np.full(width, n, scope.dtype), scope.dtype) for n in (1, 0))
    return op.nn.layer_norm(x, one, zero, axes=[-1], epsilon=1e-2)


def _draw_layer_norm(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    known = shapes[0] and isinstance(shapes[0][-1], int) and shapes[0][-1] > 1
    return (None, shapes[0]) if known else None


def _draw_last_axis(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    return (None, shapes[0]) if shapes[0] else None


def _table(in_relax: Callable, in_numpy: Callable) -> Operator:
    """Rows of what is made of a table; ids are those of the table."""
    return Operator(
        0,
        _draw_lookup,
        lambda s, c: lookup(in_relax(s, s[c[0]]), s[c[1]]),
        lambda s, c: in_numpy(s[c[0]])[s[c[1]]],
    )


def _draw_copies(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape]:
    choice, shape = _draw_lookup(rng, shapes)
    copies = int(rng.integers(1, 3))
    return (*choice, copies), (copies, *shape)


def _copies(in_relax: Callable) -> Operator:
    """Rows of each of several copies of a table, along the second axis; ids are the table's."""
    return Operator(
        0,
        _draw_copies,
        lambda s, c: op.take(in_relax(s, s[c[0]], c[2]), s[c[1]], 1),
        lambda s, c: np.stack([s[c[0]]] * c[2])[:, s[c[1]]],
    )


def _expanded(s: Scope, table: relax.Expr) -> relax.Expr:
    return s.emit(op.expand_dims(table, 0))


def _draw_part(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape]:
    choice, shape = _draw_rows(rng, shapes)
    return choice, (1, *shape)


def _draw_rows(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape]:
    table = str(rng.choice(list(TABLES)))
    rows, width = TABLES[table]
    begin = int(rng.integers(rows))
    end = int(rng.integers(begin + 1, rows + 1))
    return (table, begin, end), (end - begin, width)


def _draw_from_end(rng: np.random.Generator) -> tuple[Any, Shape]:
    table = str(rng.choice(list(TABLES)))
    rows, width = TABLES[table]
    ids = [int(n) for n in rng.integers(-rows, rows, 3)]
    return (table, ids), (3, width)


def _draw_tied(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    widths = {width: (name, rows) for name, (rows, width) in TABLES.items()}
    if len(shapes[0]) < 2 or shapes[0][-1] not in widths:
        return None
    name, rows = widths[shapes[0][-1]]  # type: ignore[index]
    return (name,), (*shapes[0][:-1], rows)


def _draw_ids(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    axis = _axis(rng, shapes[0])
    if axis is None:
        return None
    ids = [int(n) for n in rng.integers(0, LEAST_ROWS, int(rng.integers(1, 5)))]
    return (axis, ids), (*shapes[0][:axis], len(ids), *shapes[0][axis + 1 :])


def _draw_stacked(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    if shapes[0] != shapes[1]:
        return None
    axis = int(rng.integers(len(shapes[0]) + 1))
    return axis, (*shapes[0][:axis], 2, *shapes[0][axis:])


def _draw_tile(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    drawn = _draw_repeat(rng, shapes)
    if drawn is None:
        return None
    (axis, times), shape = drawn
    return [times if n == axis else 1 for n in range(len(shape))], shape


def _draw_padded(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    drawn = _draw_axis(rng, shapes)
    if drawn is None or not isinstance(shapes[0][drawn[0]], int):
        return None
    axis, (before, after) = drawn[0], (int(n) for n in rng.integers(0, 3, 2))
    extent = shapes[0][axis] + before + after  # type: ignore[operator]
    widths = [(before, after) if n == axis else (0, 0) for n in range(len(shapes[0]))]
    return widths, (*shapes[0][:axis], extent, *shapes[0][axis + 1 :])


def _draw_squeezed(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    axes = [n for n, extent in enumerate(shapes[0]) if extent == 1]
    if not axes:
        return None
    axis = int(rng.choice(axes))
    return axis, (*shapes[0][:axis], *shapes[0][axis + 1 :])


def _draw_square(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    return (int(rng.integers(-1, 2)), shapes[0]) if len(shapes[0]) > 1 else None


def _draw_einsum(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    x, y = shapes
    if len(x) != 3 or len(y) != 3 or x[0] != y[0] or x[2] != y[2]:
        return None
    return "bij,bkj->bik", (x[0], x[1], y[1])


def _draw_attention(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    query, keys = shapes
    fits = len(query) == len(keys) == 3 and (query[0], query[2]) == (keys[0], keys[2])
    return (None, query) if fits else None


def _in_relax_attention(s: Scope, c: Any, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    query, keys = (s.emit(op.expand_dims(each, 2)) for each in (x, y))  # one head
    return op.squeeze(s.emit(op.nn.attention(query, keys, keys)), [2])


def _attention(s: Scope, c: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _softmax(x @ np.swapaxes(y, -1, -2) / np.sqrt(x.shape[-1])) @ y


def _draw_gathered(rng: np.random.Generator, shapes: list[Shape]) -> tuple[Any, Shape] | None:
    shape = shapes[0]
    if not shape or not all(isinstance(extent, int) for extent in shape) or not shape[0]:
        return None
    ids = rng.integers(-shape[0], shape[0], [2, *shape[1:]])  # type: ignore[operator,list-item]
    return ids.tolist(), (2, *shape[1:])


def _ids(numbers: Any) -> relax.Expr:
    return relax.const(np.array(numbers, "int64"))


def _above(s: Scope, x: relax.Expr, least: float) -> relax.Expr:
    """`least` + x * x."""
    return s.emit(op.add(s.emit(op.multiply(x, x)), s.number(least)))


def _within(s: Scope, x: relax.Expr) -> relax.Expr:
    """Between -0.8 and 0.8."""
    return s.emit(op.multiply(s.emit(op.tanh(x)), s.number(0.8)))


def _of(least: float | None, name: str, in_numpy: Callable) -> Operator:
    """An operator of one argument on `least` + x * x, or between -0.8 and 0.8 for None."""
    in_relax = getattr(op, name)
    if least is None:
        return Operator(
            1,
            _same,
            lambda s, c, x: in_relax(_within(s, x)),
            lambda s, c, x: in_numpy(0.8 * np.tanh(x)),
        )
    return Operator(
        1,
        _same,
        lambda s, c, x: in_relax(_above(s, x, least)),
        lambda s, c, x: in_numpy(least + x * x),
    )


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * special.ndtr(x)


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


OPERATORS = {
    "dense": Operator(0, _draw_dense, lambda s, c: s.dense(c), lambda s, c: s.dense(c)),
    "lookup": Operator(
        0, _draw_lookup, lambda s, c: lookup(s[c[0]], s[c[1]]), lambda s, c: s[c[0]][s[c[1]]]
    ),
    "take": Operator(
        0, _draw_lookup, lambda s, c: op.take(s[c[0]], s[c[1]], 0), lambda s, c: s[c[0]][s[c[1]]]
    ),
    "lookup in a scaled table": Operator(
        0,
        _draw_lookup,
        lambda s, c: lookup(s.emit(op.multiply(s[c[0]], s.number(0.5))), s[c[1]]),
        lambda s, c: 0.5 * s[c[0]][s[c[1]]],
    ),
    "bag": Operator(
        0,
        _draw_bag,
        lambda s, c: embedding_bag(s[c[0]], s["bag"], s["offsets"], mode=c[1]),
        _bag,
    ),
    "tanh": _unary(op.tanh, np.tanh),
    "sigmoid": _unary(op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "relu": _unary(op.nn.relu, lambda x: np.maximum(x, 0)),
    "silu": _unary(op.nn.silu, lambda x: x / (1 + np.exp(-x))),
    "negative": _unary(op.negative, np.negative),
    "cos": _unary(op.cos, np.cos),
    "softmax": Operator(
        1, _draw_last_axis, lambda s, c, x: op.nn.softmax(x, -1), lambda s, c, x: _softmax(x)
    ),
    "log_softmax": Operator(
        1,
        _draw_last_axis,
        lambda s, c, x: op.nn.log_softmax(x, -1),
        lambda s, c, x: np.log(_softmax(x)),
    ),
    "layer_norm": Operator(
        1, _draw_layer_norm, _in_relax_layer_norm, lambda s, c, x: _layer_norm(x)
    ),
    "add": _binary(op.add, np.add),
    "subtract": _binary(op.subtract, np.subtract),
    "multiply": _binary(op.multiply, np.multiply),
    "maximum": _binary(op.maximum, np.maximum),
    "sum": _reduction(op.sum, np.sum),
    "mean": _reduction(op.mean, np.mean),
    "max": _reduction(op.max, np.max),
    "running sum": Operator(
        1,
        _draw_axis,
        lambda s, c, x: op.cumsum(x, axis=c),
        lambda s, c, x: np.cumsum(x, axis=c),
    ),
    "flip": Operator(
        1, _draw_axis, lambda s, c, x: op.flip(x, axis=c), lambda s, c, x: np.flip(x, axis=c)
    ),
    "select": Operator(
        2,
        _broadcast,
        lambda s, c, x, y: op.where(s.emit(op.greater(x, s.number(0.1))), x, y),
        lambda s, c, x, y: np.where(x > 0.1, x, y),
    ),
    "repeat": Operator(
        1,
        _draw_repeat,
        lambda s, c, x: op.repeat(x, c[1], axis=c[0]),
        lambda s, c, x: np.repeat(x, c[1], axis=c[0]),
    ),
    "take of an activation": Operator(
        1,
        _draw_places,
        lambda s, c, x: op.take(x, relax.const(np.array(c[1], "int64")), c[0]),
        lambda s, c, x: np.take(x, c[1], c[0]),
    ),
    "concat": Operator(
        2,
        _draw_joined,
        lambda s, c, x, y: op.concat([x, y], c),
        lambda s, c, x, y: np.concatenate([x, y], c),
    ),
    "slice": Operator(
        1,
        _draw_slice,
        lambda s, c, x: op.strided_slice(x, [c[0]], [c[1]], [c[2]]),
        lambda s, c, x: x[_in_slice(c)],
    ),
    "permute": Operator(
        1,
        _draw_permutation,
        lambda s, c, x: op.permute_dims(x, c),
        lambda s, c, x: np.transpose(x, c),
    ),
    "linear": Operator(
        1,
        _draw_weight,
        lambda s, c, x: op.matmul(x, s.weight(c)),
        lambda s, c, x: x @ s.weight(c),
    ),
    "product": Operator(
        2,
        _draw_product,
        lambda s, c, x, y: op.matmul(x, s.emit(_swapped(op.permute_dims, y)) if c else y),
        lambda s, c, x, y: x @ (np.swapaxes(y, -1, -2) if c else y),
    ),
    "flatten": Operator(
        1,
        _draw_flat,
        lambda s, c, x: op.reshape(x, [s.extent(e) for e in c]),
        lambda s, c, x: x.reshape([s.extent(e) for e in c]),
    ),
    "expand": Operator(
        1,
        _draw_expanded,
        lambda s, c, x: op.expand_dims(x, c),
        lambda s, c, x: np.expand_dims(x, c),
    ),
    "rows of a table": Operator(
        0,
        _draw_rows,
        lambda s, c: op.strided_slice(s[c[0]], [0], [c[1]], [c[2]]),
        lambda s, c: s[c[0]][c[1] : c[2]],
    ),
    "take of a table in a stack": _copies(lambda s, t, n: s.emit(op.stack([t] * n, 0))),
    "take of an expanded table, joined": _copies(
        lambda s, t, n: s.emit(op.concat([_expanded(s, t)] * n, 0))
    ),
    "take of a table in several places": _copies(
        lambda s, t, n: s.emit(op.broadcast_to(t, [n, *t.ty.shape]))
    ),
    "take of a tiled table that was made dense": _copies(
        lambda s, t, n: s.emit(ad.densify(s.emit(op.tile(t, [n, 1, 1]))))
    ),
    "rows of an expanded table": Operator(
        0,
        _draw_part,
        lambda s, c: op.strided_slice(_expanded(s, s[c[0]]), [1], [c[1]], [c[2]]),
        lambda s, c: s[c[0]][None, c[1] : c[2]],
    ),
    "rows of a table from the end": Operator(
        0,
        lambda rng, shapes: _draw_from_end(rng),
        lambda s, c: op.take(s[c[0]], _ids(c[1]), 0),
        lambda s, c: s[c[0]][c[1]],
    ),
    "index_tensor of a scaled table": Operator(
        0,
        _draw_lookup,
        lambda s, c: op.index_tensor(s.emit(op.multiply(s[c[0]], s.number(0.5))), [s[c[1]]]),
        lambda s, c: 0.5 * s[c[0]][s[c[1]]],
    ),
    "gather_nd of a table": Operator(
        0,
        _draw_lookup,
        lambda s, c: op.gather_nd(s[c[0]], s.emit(op.expand_dims(s[c[1]], -1))),
        lambda s, c: s[c[0]][s[c[1]]],
    ),
    "index_tensor of a table": Operator(
        0,
        _draw_lookup,
        lambda s, c: op.index_tensor(s[c[0]], [s[c[1]]]),
        lambda s, c: s[c[0]][s[c[1]]],
    ),
    "lookup in a negated table": _table(lambda s, t: s.emit(op.negative(t)), np.negative),
    "lookup in a divided table": _table(
        lambda s, t: s.emit(op.divide(t, s.number(4.0))), lambda t: t / 4
    ),
    "lookup in a table twice on top of itself": _table(
        lambda s, t: s.emit(op.concat([t, t], 0)), lambda t: np.concatenate([t, t])
    ),
    "lookup in a reshaped table": _table(
        lambda s, t: s.emit(op.reshape(s.emit(op.reshape(t, [1, *t.ty.shape])), t.ty.shape)),
        np.array,
    ),
    "lookup in a table that was made dense": _table(
        lambda s, t: s.emit(ad.densify(s.emit(op.tanh(t)))), np.tanh
    ),
    "lookup in a table behind an operator": _table(lambda s, t: s.emit(op.tanh(t)), np.tanh),
    "tied": Operator(
        1,
        _draw_tied,
        lambda s, c, x: op.matmul(x, s.emit(op.permute_dims(s[c[0]]))),
        lambda s, c, x: x @ s[c[0]].T,
    ),
    "sin": _unary(op.sin, np.sin),
    "erf": _unary(op.erf, special.erf),
    "abs": _unary(op.abs, np.abs),
    "square": _unary(op.square, np.square),
    "gelu": _unary(op.nn.gelu, _gelu),
    "gelu_tanh": _unary(op.nn.gelu_tanh, _gelu_tanh),
    "softplus": _unary(lambda x: op.nn.softplus(x, beta=1.0), lambda x: np.logaddexp(0, x)),
    "leakyrelu": _unary(lambda x: op.nn.leakyrelu(x, 0.2), lambda x: np.where(x > 0, x, 0.2 * x)),
    "clip": _unary(lambda x: op.clip(x, -0.7, 0.6), lambda x: np.clip(x, -0.7, 0.6)),
    "exp": _of(None, "exp", np.exp),
    **{
        name: _of(1.5, name, in_numpy)
        for name, in_numpy in {
            "log": np.log,
            "sqrt": np.sqrt,
            "rsqrt": lambda x: 1 / np.sqrt(x),
        }.items()
    },
    "minimum": _binary(op.minimum, np.minimum),
    "log_add_exp": _binary(op.log_add_exp, np.logaddexp),
    "divide": Operator(
        2,
        _broadcast,
        lambda s, c, x, y: op.divide(x, _above(s, y, 1.0)),
        lambda s, c, x, y: x / (1 + y * y),
    ),
    "power": Operator(
        2,
        _broadcast,
        lambda s, c, x, y: op.power(_above(s, x, 1.0), _within(s, y)),
        lambda s, c, x, y: (1 + x * x) ** (0.8 * np.tanh(y)),
    ),
    "min": _reduction(op.min, np.min),
    "variance": _reduction(op.variance, np.var),
    "take, clipped": Operator(
        1,
        _draw_ids,
        lambda s, c, x: op.take(x, _ids(c[1]), c[0], "clip"),
        lambda s, c, x: np.take(x, c[1], c[0], mode="clip"),
    ),
    "gather_elements": Operator(
        1,
        _draw_gathered,
        lambda s, c, x: op.gather_elements(x, _ids(c), 0),
        lambda s, c, x: np.take_along_axis(x, np.array(c), 0),
    ),
    "stack": Operator(
        2,
        _draw_stacked,
        lambda s, c, x, y: op.stack([x, y], c),
        lambda s, c, x, y: np.stack([x, y], c),
    ),
    "tile": Operator(1, _draw_tile, lambda s, c, x: op.tile(x, c), lambda s, c, x: np.tile(x, c)),
    "pad": Operator(
        1,
        _draw_padded,
        lambda s, c, x: op.nn.pad(x, [width for pair in c for width in pair]),
        lambda s, c, x: np.pad(x, c),
    ),
    "squeeze": Operator(
        1,
        _draw_squeezed,
        lambda s, c, x: op.squeeze(x, [c]),
        lambda s, c, x: np.squeeze(x, c),
    ),
    "tril": Operator(1, _draw_square, lambda s, c, x: op.tril(x, c), lambda s, c, x: np.tril(x, c)),
    "triu": Operator(1, _draw_square, lambda s, c, x: op.triu(x, c), lambda s, c, x: np.triu(x, c)),
    "einsum": Operator(
        2,
        _draw_einsum,
        lambda s, c, x, y: op.einsum([x, y], c),
        lambda s, c, x, y: np.einsum(c, x, y),
    ),
    "attention": Operator(2, _draw_attention, _in_relax_attention, _attention),
    "cross-entropy": Operator(
        2,
        lambda rng, shapes: (None, shapes[0]) if shapes[0] == shapes[1] else None,
        lambda s, c, x, y: ad.bce_with_logits(x, s.emit(op.sigmoid(y))),
        lambda s, c, x, y: np.logaddexp(0, x) - x / (1 + np.exp(-y)),
    ),
}
SOURCES = tuple(name for name, operator in OPERATORS.items() if not operator.arity)


def _swapped(permute: Callable, x: relax.Expr) -> relax.Expr:
    order = [*range(x.ty.ndim)]
    return permute(x, [*order[:-2], order[-1], order[-2]])
