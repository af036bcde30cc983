# SPDX-License-Identifier: Apache-2.0
"""Limits of this machine, measured between the turns of the arms.

GEMM: a product of 2048 x 1024 by 1024 x 1024 by the kernel that our schedule makes, on warm
operands, in the precision of our arm; `numpy_roof` has NumPy's in float32. Gather: rows at random
places of a table as large as the run's, copied by a kernel that does nothing else.
"""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.script import tirx as T

from harness.task import Task
from harness.timing import MOST_CALLS, gemm_operands, timed_calls
from sparsetrain import runtime
from sparsetrain.compiler import schedule
from sparsetrain.compiler.precision import policy_for, to_half
from sparsetrain.runtime.compiling import build_relax, compile_kernel
from sparsetrain.runtime.host import host_target

GATHER_ROWS = 53_248  # of a batch of 2048 with 26 features
GATHER_SETS = 32  # in all 109 MB of rows of width 16, more than a processor's last cache


class OurRoofs:
    """Both roofs, of this library's compiler."""

    def __init__(self, task: Task) -> None:
        self._rows, self._dim = sum(task.config.rows), task.config.dim
        self._run = {"gemm": _gemm(task.precision), "gather": _gather(self._rows, self._dim)}

    def turn(self, warm: int, timed: int) -> dict[str, Any]:
        """Both; as often as an arm steps, within reason."""
        return {
            name: timed_calls(run, warm, min(timed, MOST_CALLS)) for name, run in self._run.items()
        }

    def about(self) -> dict[str, Any]:
        """A gather reads and writes each row once."""
        return {"gather_bytes": 2 * GATHER_ROWS * self._dim * 4, "gather_rows": GATHER_ROWS}


def _gemm(precision: str) -> Callable[[], Any]:
    left, right = (runtime.as_tensor(array) for array in gemm_operands())
    builder = relax.BlockBuilder()
    x, w = (
        relax.Var(name, relax.TensorType(tuple(map(int, operand.shape)), "float32"))
        for name, operand in (("x", left), ("w", right))
    )
    with builder.function("product", [x, w]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, relax.op.permute_dims(w)))
        builder.emit_func_output(out)
    target, module = host_target(), builder.finalize()
    policy = policy_for(precision, target)
    if policy is not None:
        module = to_half(module, "product", policy)
    machine = build_relax(module, target, schedule.pipeline(target))
    product = machine["product"]
    return lambda: product(left, right)


def _gather(rows: int, dim: int) -> Callable[[], Any]:
    kernel = compile_kernel(_gather_kernel(rows, dim), host_target())
    table = runtime.empty((rows, dim), "float32", "the table of the gather roof")
    runtime.as_numpy(table, writable=True)[...] = 1  # memory never written has no pages of its own
    rng = np.random.default_rng(0)
    drawn = (rng.integers(0, rows, GATHER_ROWS, dtype=np.int64) for _ in range(GATHER_SETS))
    places = cycle([runtime.as_tensor(array) for array in drawn])
    out = runtime.empty((GATHER_ROWS, dim), "float32")
    return lambda: kernel(table, next(places), out)


def _gather_kernel(rows: int, dim: int) -> tvm.tirx.PrimFunc:
    """Parallel over rows; the columns of a row are copied as vectors."""
    lanes = 16 if dim % 16 == 0 else 1

    @T.prim_func(s_tir=True)
    def gather(
        table: T.Buffer((rows, dim), "float32"),
        places: T.Buffer((GATHER_ROWS,), "int64"),
        out: T.Buffer((GATHER_ROWS, dim), "float32"),
    ):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        for i in T.parallel(GATHER_ROWS):
            for tile in T.serial(dim // lanes):
                for lane in T.vectorized(lanes):
                    out[i, tile * lanes + lane] = table[places[i], tile * lanes + lane]

    return gather
