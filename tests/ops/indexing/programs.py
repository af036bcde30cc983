# SPDX-License-Identifier: Apache-2.0
"""Programs of one operator that reads by ids, whose ids the program computes or is given."""

from collections.abc import Callable
from functools import reduce

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

import sparsetrain as st

TARGETS = ("llvm", "cuda")  # of the fixture `target`


def module(body: Callable[..., relax.Expr], arrays: dict, *, computed: bool) -> tvm.IRModule:
    """A function `out`; no gate sees ids that are `computed`."""
    variables = [
        relax.Var(name, relax.TensorType(array.shape, str(array.dtype)))
        for name, array in arrays.items()
    ]
    return of_variables(body, variables, computed=computed)


def of_variables(
    body: Callable[..., relax.Expr], variables: list[relax.Var], *, computed: bool = True
) -> tvm.IRModule:
    """The same, of arguments that may have letters for lengths."""
    builder = relax.BlockBuilder()
    with builder.function("out", variables):
        with builder.dataflow():
            given = [_computed(builder, v) if computed else v for v in variables]
            result = builder.emit_output(builder.normalize(body(*given)))
        builder.emit_func_output(result)
    return builder.get()


def by_ids() -> tvm.IRModule:
    """A loss of a tensor that is read by computed ids in several ways."""

    def loss(x: relax.Var, ids: relax.Var) -> relax.Expr:
        one, y = op.squeeze(ids, [1]), op.exp(x)
        picked = op.gather_elements(y, ids, axis=0), op.index_tensor(y, [one, one])
        read = op.gather_nd(y, ids), op.take(y, one, axis=1), *picked
        return reduce(op.add, (op.sum(op.multiply(z, z)) for z in read))

    arrays = {"x": np.zeros((6, 4), "f4"), "ids": np.zeros((9, 1), "i8")}
    return module(loss, arrays, computed=True)


def _computed(builder: relax.BlockBuilder, given: relax.Var) -> relax.Var:
    dtype = str(given.ty.dtype)
    if given.name == "x" or "int" not in dtype:
        return given
    return builder.emit(op.add(given, relax.const(0, dtype)))


def compiled(
    body: Callable[..., relax.Expr], arrays: dict, target: str = "cpu", *, computed: bool = True
) -> Callable[[], np.ndarray]:
    """What gives the result, as a NumPy array, whenever it is called."""
    program = st.Program(module(body, arrays, computed=computed), "out", target)
    return lambda: program(arrays, {}).numpy()


def run(body: Callable[..., relax.Expr], arrays: dict, target: str = "cpu") -> np.ndarray:
    """What it gives once."""
    return compiled(body, arrays, target)()
