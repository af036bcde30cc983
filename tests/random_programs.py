# SPDX-License-Identifier: Apache-2.0
"""Random programs: loss and gradients of each against NumPy in float64, for two sizes of a batch.

A program is a list of lines, each an operator of this module's table on values of earlier lines:
dense ones, lookups and bags in shared tables, symbolic and fixed extents. It must be right, or be
refused by an error of this package. A program that fails is shrunk before it is printed.

    python -m tests.random_programs --count 1000 --seed 0
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from sparsetrain import ad, runtime
from sparsetrain.compiler.program import GradientProgram
from sparsetrain.embedding import embedding_bag, lookup
from sparsetrain.errors import SparsetrainError
from sparsetrain.sparse_tensor import RowSparse

Extent = int | str  # a number, or a letter or expression of letters
Shape = tuple[Extent, ...]

SIZES = ({"B": 5, "L": 3}, {"B": 1, "L": 2})
TABLES = {"items": (9, 4), "users": (6, 3), "wide": (7, 8)}
IDS: dict[str, Shape] = {"each": ("B",), "pairs": ("B", 2), "history": ("B", "L")}
BOUND = {"float32": 2e-4, "float64": 1e-6}  # of the norm of a gradient, plus 1
MOST_ELEMENTS = 400


class Line(NamedTuple):
    """A value: an operator, the numbers of the lines that it reads, its choices and its shape."""

    operator: str
    reads: tuple[int, ...]
    choice: Any
    shape: Shape


@dataclass(frozen=True)
class Program:
    """Lines in order; the loss is a sum over all values that no line reads."""

    lines: tuple[Line, ...]
    dtype: str
    seed: int

    def __str__(self) -> str:
        texts = [f"# {self.dtype}, numbers of seed {self.seed}"]
        for number, line in enumerate(self.lines):
            reads = ", ".join(f"v{place}" for place in line.reads)
            choice = "" if line.choice is None else f" {line.choice}"
            texts.append(f"v{number} = {line.operator}({reads}){choice}  # {line.shape}")
        return "\n".join(texts)

    def ends(self) -> list[int]:
        """The values that no line reads."""
        read = {place for line in self.lines for place in line.reads}
        return [number for number in range(len(self.lines)) if number not in read]


# --- Operators: what they can be applied to, in Relax, in NumPy ----------------------------------


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
    axes = [n for n, extent in enumerate(shapes[0]) if isinstance(extent, int)]
    if not axes:
        return None
    axis = int(rng.choice(axes))
    places = [int(n) for n in rng.integers(0, shapes[0][axis], int(rng.integers(1, 5)))]
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
    end = int(rng.integers(begin + 1, extent + 1))
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
    if len(shapes[0]) < 2:
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
    shape: Shape = [("B", 3), ("B", 4), ("B", "L", 4), (3,), ("B", 1)][int(rng.integers(5))]
    return shape, shape


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
}
SOURCES = tuple(name for name, operator in OPERATORS.items() if not operator.arity)


def _swapped(permute: Callable, x: relax.Expr) -> relax.Expr:
    order = [*range(x.ty.ndim)]
    return permute(x, [*order[:-2], order[-1], order[-2]])


# --- What a program reads -------------------------------------------------------------------------


class Scope:
    """Tables, weights, numbers and ids of a program, as variables or as arrays, by name."""

    def __init__(
        self, values: Mapping[str, Any], sizes: Mapping[str, Any], dtype: str, builder: Any = None
    ) -> None:
        self._values, self._sizes, self.dtype, self._builder = values, sizes, dtype, builder

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def dense(self, shape: Shape) -> Any:
        """The numbers of a shape."""
        return self[f"dense {shape}"]

    def weight(self, shape: Shape) -> Any:
        """The weight of a shape: products of one shape share it."""
        return self[f"weight {shape}"]

    def extent(self, extent: Extent) -> Any:
        """An extent, of letters a number or an expression."""
        if isinstance(extent, int):
            return extent
        return eval(extent, {}, dict(self._sizes))  # noqa: S307 (an expression of this module)

    def number(self, value: float) -> relax.Expr:
        """A constant."""
        return relax.const(value, self.dtype)

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """A value in the middle of an operator."""
        return self._builder.emit(expr)


def shapes_of(program: Program) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Shapes of the parameters and of the ids that a program reads, by name."""
    params: dict[str, Shape] = {}
    ids: dict[str, Shape] = {}
    for operator, _, choice, _ in program.lines:
        if operator == "dense":
            params[f"dense {choice}"] = choice
        elif operator == "linear":
            params[f"weight {choice}"] = choice
        elif operator in SOURCES:
            params[choice[0]] = TABLES[choice[0]]
            if operator == "bag":
                # An extent that is B itself, besides B + 1.
                ids |= {"bag": ("N",), "offsets": ("(B + 1)",), "each": IDS["each"]}
            else:
                ids[choice[1]] = IDS[choice[1]]
    return params, ids


def build(program: Program) -> tvm.IRModule:
    """The program as a Relax function `main` of ids, then parameters, that returns a loss."""
    params, ids = shapes_of(program)
    letters = {letter: tvm.tirx.Var(letter, "int64") for letter in "BLN"}
    sizes = Scope({}, letters, program.dtype)
    builder = relax.BlockBuilder()

    def variable(name: str, shape: Shape, dtype: str) -> relax.Var:
        extents = [sizes.extent(extent) for extent in shape]
        return relax.Var(name, relax.TensorType(extents, dtype))

    named = {name: variable(name, shape, "int64") for name, shape in ids.items()}
    named |= {name: variable(name, shape, program.dtype) for name, shape in params.items()}
    scope = Scope(named, letters, program.dtype, builder)
    with builder.function("main", [*named.values()], attrs={"num_input": len(ids)}):
        with builder.dataflow():
            values: list[Any] = []
            for operator, reads, choice, _ in program.lines:
                arguments = [values[place] for place in reads]
                values.append(builder.emit(OPERATORS[operator].relax(scope, choice, *arguments)))
            means = [builder.emit(op.mean(op.sin(values[place]))) for place in program.ends()]
            loss = means[0]
            for number, mean in enumerate(means[1:], start=2):
                loss = builder.emit(op.add(loss, op.multiply(mean, scope.number(number))))
            loss = builder.emit_output(op.multiply(loss, scope.number(1.5)))
        builder.emit_func_output(loss)
    return builder.get()


def loss_in_numpy(program: Program, scope: Scope) -> tuple[float, float]:
    """The loss in float64, and the size of the largest value, which decides how it is rounded."""
    values: list[np.ndarray] = []
    for operator, reads, choice, _ in program.lines:
        arguments = [values[place] for place in reads]
        values.append(np.asarray(OPERATORS[operator].numpy(scope, choice, *arguments)))
    means = [np.sin(values[place]).mean() for place in program.ends()]
    loss = 1.5 * float(sum(number * mean for number, mean in enumerate(means, start=1)))
    return loss, max(1.0, *(float(np.abs(value).max()) for value in values))


def arrays_of(
    program: Program, sizes: Mapping[str, int]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Parameters in the program's dtype, and ids; ids repeat, and one bag is empty."""
    params, ids = shapes_of(program)
    rng, scope = np.random.default_rng(program.seed), Scope({}, sizes, program.dtype)

    def extents(shape: Shape) -> list[int]:
        return [scope.extent(extent) for extent in shape]

    numbers = {
        name: rng.uniform(-1, 1, extents(shape)).astype(program.dtype)
        for name, shape in sorted(params.items())
    }
    least = min(rows for rows, _ in TABLES.values())
    lengths = np.array([0, *rng.integers(1, 4, sizes["B"])[1:]])
    drawn = {"offsets": np.append(0, lengths.cumsum())}
    drawn["bag"] = rng.integers(0, least, drawn["offsets"][-1])
    for name, shape in IDS.items():
        drawn[name] = rng.integers(0, least, extents(shape))
    return numbers, {name: drawn[name] for name in ids}


# --- Drawing, checking, shrinking ----------------------------------------------------------------


def draw(seed: int, most: int = 12) -> Program:
    """A program of some lines; each reads earlier ones, the latest more often."""
    rng = np.random.default_rng(seed)
    lines: list[Line] = []
    names = [*OPERATORS]
    wanted = int(rng.integers(3, most + 1))
    while len(lines) < wanted:
        source = len(lines) < 2 or rng.random() < 0.2
        name = str(rng.choice(SOURCES if source else names))
        operator = OPERATORS[name]
        if operator.arity > len(lines):
            continue
        weights = np.arange(1, len(lines) + 1) ** 2.0
        likely = weights / weights.sum()
        places = [int(rng.choice(len(lines), p=likely)) for _ in range(operator.arity)]
        drawn = operator.draw(rng, [lines[place].shape for place in places])
        if drawn is not None and _is_small(drawn[1]):
            lines.append(Line(name, tuple(places), *drawn))
    return Program(tuple(lines), str(rng.choice(["float32", "float64"])), seed)


def _is_small(shape: Shape) -> bool:
    scope = Scope({}, SIZES[0], "float64")
    return len(shape) <= 4 and np.prod([scope.extent(e) for e in shape]) <= MOST_ELEMENTS


class Refused(Exception):
    """The program got an error of this package."""


def check(program: Program) -> None:
    """Compare loss and gradients for each of two sizes.

    Raises
    ------
    Refused
        If the package refuses the program.
    AssertionError
        If a number is wrong.
    """
    try:
        compiled = GradientProgram(ad.gradient(build(program), "main"), "cpu")
        compiled.compile()
    except SparsetrainError as error:
        raise Refused(str(error)) from error
    for sizes in SIZES:
        params, ids = arrays_of(program, sizes)
        loss, gradients = compiled(params, ids)
        wide = {name: array.astype("f8") for name, array in params.items()}
        scope = Scope({**wide, **ids}, sizes, "float64")
        expected, largest = loss_in_numpy(program, scope)
        bound = BOUND[program.dtype] * largest
        _require_close("the loss", runtime.as_numpy(loss), expected, bound)
        rng = np.random.default_rng(0)
        for name, gradient in gradients.items():
            dense = gradient.to_dense() if isinstance(gradient, RowSparse) else gradient
            found = np.asarray(runtime.as_numpy(dense), "f8")
            assert found.shape == wide[name].shape, f"{name}: shape {found.shape}"
            for _ in range(2):
                direction, original = rng.standard_normal(found.shape), wide[name]
                losses = []
                for step in (1e-6, -1e-6):
                    scope._values[name] = original + step * direction
                    losses.append(loss_in_numpy(program, scope)[0])
                scope._values[name] = original
                expected = (losses[0] - losses[1]) / 2e-6
                size = bound * (1 + np.linalg.norm(found) * np.linalg.norm(direction))
                what = f"the gradient of {name} for {sizes}"
                _require_close(what, (found * direction).sum(), expected, size)


def _require_close(what: str, found: Any, expected: float, bound: float) -> None:
    difference = abs(float(found) - expected)
    assert difference <= bound * (1 + abs(expected)), f"{what}: {float(found)}, not {expected}"


def failure_of(program: Program) -> str | None:
    """What is wrong with a program on one line; None if nothing is, or if it was refused."""
    try:
        check(program)
    except Refused:
        return None
    except Exception as error:  # whatever a compiler raises
        return f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return None


def shrunk(program: Program, fails: Callable[[Program], Any] = failure_of) -> Program:
    """The program without lines that its failure does not need."""
    for number in reversed(range(len(program.lines))):
        smaller = _without(program, number)
        if smaller.lines and fails(smaller):
            return shrunk(smaller, fails)
    return program


def _without(program: Program, number: int) -> Program:
    """Leave a line out, and those that read it."""
    places: dict[int, int] = {}
    kept: list[Line] = []
    for place, line in enumerate(program.lines):
        if place != number and all(read in places for read in line.reads):
            places[place] = len(kept)
            kept.append(line._replace(reads=tuple(places[read] for read in line.reads)))
    return replace(program, lines=tuple(kept))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check programs of consecutive seeds; return 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="programs")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    options = parser.parse_args(arguments)
    refused: Counter[str] = Counter()
    failed = 0
    for seed in range(options.seed, options.seed + options.count):
        program = draw(seed)
        try:
            check(program)
        except Refused as error:
            refused[str(error)[:100]] += 1
        except Exception:
            failed += 1
            small = shrunk(program)
            print(f"seed {seed}: {failure_of(small)}\n{small}\n", flush=True)
    print(f"{options.count} programs: {failed} failed, {refused.total()} were refused")
    for reason, times in refused.most_common():
        print(f"{times:6d}  {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
