# SPDX-License-Identifier: Apache-2.0
"""Random programs that read some rows of their values: with and without the dead ones.

The loss has the same bits, gradients are equal up to the order of sums. A program that fails is
shrunk before it is printed.

    python -m tests.random_rows --count 2000 --seed 0
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

import sparsetrain as st
from sparsetrain import ad, runtime
from sparsetrain.compiler.dead_rows import eliminate_dead_rows, keep_dead_rows
from sparsetrain.compiler.program import GradientProgram
from sparsetrain.errors import SparsetrainError
from tests.random_operators import TABLES
from tests.random_programs import Program, Refused, Scope, arrays_of, build, draw, shapes_of, shrunk

SIZES = {"B": 5, "L": 3}
TARGET: Any = "cpu"


def read_rows(scope: Scope, value: relax.Expr, seed: int) -> relax.Expr:
    """Some rows of a value, along an axis that is not its last, if there are more than one."""
    rng = np.random.default_rng([seed, value.ty.ndim])
    if value.ty.ndim < 2:
        return value
    axis = int(rng.integers(value.ty.ndim - 1))
    extent = value.ty.shape[axis]
    if not isinstance(extent, tvm.tirx.IntImm):
        return op.strided_slice(value, [axis], [0], [1], assume_inbound=True)
    if int(extent) < 2:
        return value
    places = np.sort(rng.choice(int(extent), int(rng.integers(1, int(extent))), replace=False))
    if rng.random() < 0.5:
        return op.take(value, relax.const(places.astype("int64")), axis)
    return op.strided_slice(value, [axis], [int(places[0])], [int(places[0]) + 1])


def compared(program: Program, gradients: bool = True) -> tuple[int, bool]:
    """Compare a program with and without dead rows: its loss, and its gradients if so wanted.

    Returns the number of operators on fewer rows, and whether all gradients have the same bits.

    Raises
    ------
    Refused
        If the package refuses to differentiate the program with all of its rows.
    AssertionError
        If a number is wrong.
    """
    module = build(program, read_rows)
    fewer, spared = eliminate_dead_rows(module, "main", trains=True)
    if not spared:
        return 0, True
    params, ids = arrays_of(program, SIZES)
    with keep_dead_rows():
        expected, loss = (_loss(each)(params, ids) for each in (module, fewer))
    one, other = (runtime.as_numpy(each) for each in (loss, expected))
    assert one.tobytes() == other.tobytes(), f"the loss: {one!r}, not {other!r}"
    if not gradients:
        return len(spared), True
    tables = [name for name in shapes_of(program)[0] if name in TABLES]
    try:
        _, wanted = _compiled(module, tables)(params, ids)
    except SparsetrainError as error:
        raise Refused(str(error)) from error
    _, found = _compiled(fewer, tables)(params, ids)
    same = True
    for name, gradient in wanted.items():
        one, other = (_dense(each) for each in (found[name], gradient))
        same &= bool(np.array_equal(one, other, equal_nan=True))
        if not np.isfinite(other).all():
            continue
        bound = {"float32": 2e-5, "float64": 1e-12}[program.dtype] * (1 + np.linalg.norm(other))
        error = np.linalg.norm(one - other)
        assert error <= bound, f"the gradient of {name}: off by {error:.2g}"
    return len(spared), same


def _loss(module: tvm.IRModule) -> st.Program:
    return st.Program(module, "main", TARGET)


def _compiled(module: tvm.IRModule, tables: list[str]) -> GradientProgram:
    try:
        gradient = ad.gradient(module, "main")
    except SparsetrainError:
        gradient = ad.gradient(module, "main", densify=tables)
    return GradientProgram(gradient, TARGET).compile()


def _dense(gradient: Any) -> np.ndarray:
    is_sparse = isinstance(gradient, st.RowSparse)
    return np.asarray(runtime.as_numpy(gradient.to_dense() if is_sparse else gradient), "f8")


def failure_of(program: Program) -> str | None:
    """What is wrong with a program, on one line."""
    try:
        compared(program)
    except Refused:
        return None
    except Exception as error:  # whatever a compiler raises
        return f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare programs of consecutive seeds; return 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="programs")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--gradients", type=int, default=4, help="of each so many programs")
    options = parser.parse_args(arguments)
    told: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.count):
        program = draw(seed)
        try:
            spared, same = compared(program, not seed % options.gradients)
        except Refused:
            told["refused"] += 1
        except Exception:
            told["failed"] += 1
            small = shrunk(program, failure_of)
            sys.stdout.write(f"seed {seed}: {failure_of(small)}\n{small}\n\n")
        else:
            told["of fewer rows" if spared else "of all rows"] += 1
            told["with gradients of the same bits"] += bool(spared) and same
            told["operators on fewer rows"] += spared
    sys.stdout.write(f"{options.count} programs: {dict(told)}\n")
    return 1 if told["failed"] else 0


if __name__ == "__main__":
    os.environ.setdefault("SPARSETRAIN_CACHE", "")  # of programs that nobody runs again
    sys.exit(main())
