# SPDX-License-Identifier: Apache-2.0
"""Random programs: loss and gradients of each against NumPy in float64, for three sizes of a batch.

A program is a list of lines, each an operator of `random_operators` on values of earlier lines:
dense ones, lookups and bags in shared tables, symbolic, fixed and empty extents. It must be right,
or be refused by an error of this package. A program that fails is shrunk before it is printed.

    python -m tests.random_programs --count 1000 --seed 0
"""

from __future__ import annotations

import argparse
import contextlib
import os
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
from sparsetrain.errors import SparsetrainError
from sparsetrain.sparse_tensor import RowSparse
from tests.random_operators import IDS, LEAST_ROWS, OPERATORS, SOURCES, TABLES, Extent, Shape

SIZES = ({"B": 5, "L": 3}, {"B": 1, "L": 2}, {"B": 2, "L": 0})
BOUND = {"float32": 2e-4, "float64": 1e-6}  # of the norm of a gradient, plus 1
MOST_ELEMENTS = 400
OF_SOME = frozenset(  # of nothing they are no number, or an error
    {"max", "min", "mean", "variance", "softmax", "log_softmax", "attention", "take, clipped"}
)


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
        elif operator == "tied" or operator.startswith("rows of a"):
            params[choice[0]] = TABLES[choice[0]]
        elif operator in SOURCES:
            params[choice[0]] = TABLES[choice[0]]
            if operator == "bag":
                # An extent that is B itself, besides B + 1.
                ids |= {"bag": ("N",), "offsets": ("(B + 1)",), "each": IDS["each"]}
            else:
                ids[choice[1]] = IDS[choice[1]]
    return params, ids


def build(
    program: Program, read: Callable[[Scope, relax.Expr, int], relax.Expr] = lambda s, x, n: x
) -> tvm.IRModule:
    """The program as a Relax function `main` of ids, then parameters, that returns a loss.

    The loss is what `read` reads of the values at the end.
    """
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
            ends = [read(scope, values[place], program.seed) for place in program.ends()]
            sums = [builder.emit(op.sum(op.sin(end))) for end in ends]
            loss = sums[0]
            for number, total in enumerate(sums[1:], start=2):
                loss = builder.emit(op.add(loss, op.multiply(total, scope.number(number))))
            loss = builder.emit_output(op.multiply(loss, scope.number(1.5)))
        builder.emit_func_output(loss)
    return builder.get()


def loss_in_numpy(program: Program, scope: Scope) -> tuple[float, float]:
    """The loss in float64, and the size of the largest value, which decides how it is rounded."""
    values: list[np.ndarray] = []
    for operator, reads, choice, _ in program.lines:
        arguments = [values[place] for place in reads]
        if operator in OF_SOME and not arguments[0].size:
            return np.nan, 1.0
        values.append(np.asarray(OPERATORS[operator].numpy(scope, choice, *arguments)))
    sums = [np.sin(values[place]).sum() for place in program.ends()]
    loss = 1.5 * float(sum(number * total for number, total in enumerate(sums, start=1)))
    return loss, max(1.0, *(float(np.abs(value).max(initial=0)) for value in values))


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
    lengths = np.array([0, *rng.integers(1, 4, sizes["B"])[1:]])
    drawn = {"offsets": np.append(0, lengths.cumsum())}
    drawn["bag"] = rng.integers(0, LEAST_ROWS, drawn["offsets"][-1])
    for name, shape in IDS.items():
        drawn[name] = rng.integers(0, LEAST_ROWS, extents(shape))
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
    """Compare loss and gradients for each of several sizes.

    Gradients of tables may be dense where the package asks for that.

    Raises
    ------
    Refused
        If the package refuses the program.
    AssertionError
        If a number is wrong.
    """
    try:
        compiled = GradientProgram(_gradient(program), "cpu")
        compiled.compile()
    except SparsetrainError as error:
        raise Refused(str(error)) from error
    for sizes in SIZES:
        params, ids = arrays_of(program, sizes)
        loss, gradients = compiled(params, ids)
        wide = {name: array.astype("f8") for name, array in params.items()}
        scope = Scope({**wide, **ids}, sizes, "float64")
        expected, largest = loss_in_numpy(program, scope)
        if not np.isfinite(expected):  # a mean of nothing, for example
            continue
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


def _gradient(program: Program) -> ad.GradientModule:
    module, tables = build(program), [name for name in shapes_of(program)[0] if name in TABLES]
    try:
        return ad.gradient(module, "main")
    except SparsetrainError:
        return ad.gradient(module, "main", densify=tables)


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
    """Check programs of consecutive seeds, until Ctrl-C; return 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="programs")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    options = parser.parse_args(arguments)
    refused: Counter[str] = Counter()
    right: Counter[str] = Counter()
    failed = 0
    done = 0
    with contextlib.suppress(KeyboardInterrupt):
        for seed in range(options.seed, options.seed + options.count):
            program = draw(seed)
            try:
                check(program)
                right.update({line.operator for line in program.lines})
            except Refused as error:
                refused[str(error)[:100]] += 1
            except Exception:
                failed += 1
                small = shrunk(program)
                print(f"seed {seed}: {failure_of(small)}\n{small}\n", flush=True)
            done += 1
    print(f"{done} programs: {failed} failed, {refused.total()} were refused")
    never = ", ".join(sorted(OPERATORS.keys() - right.keys())) or "none"
    print(f"{len(right)} of {len(OPERATORS)} operators in programs that are right; not: {never}")
    for reason, times in refused.most_common():
        print(f"{times:6d}  {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("SPARSETRAIN_CACHE", "")  # of programs that nobody runs again
    sys.exit(main())
