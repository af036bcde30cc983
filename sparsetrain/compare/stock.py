# SPDX-License-Identifier: Apache-2.0
"""TVM's own dense training update of one table.

`relax.transform.Gradient` turns ``take`` into ``take_backward``, which adds the rows to an array of
zeros as large as the table: a dense gradient. `relax.training.optimizer` makes a function that maps
parameters and gradients to new parameters. TVM's default pipeline compiles both functions, without
CPU schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax
from tvm.relax.training import optimizer as stock_optimizer

from sparsetrain import runtime
from sparsetrain.compare.case import Case
from sparsetrain.runtime.compiling import create_vm
from sparsetrain.runtime.host import host_target
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.system.stderr_filter import filter_stderr

# Warnings that TVM prints while it lowers its own code.
_WARNINGS = (b"Warning: Unknown pragma pragma_scope", b"Warning: Fast mode segfaults")


class _Adam(stock_optimizer.Adam):
    """TVM 0.27's Adam, fixed: the original passes a TVM dtype to NumPy, which fails."""

    def _set_params_and_dtype(self, params: list[relax.Var]) -> None:
        super()._set_params_and_dtype(params)
        self.dtype: Any = "float32"


# TVM has no other optimizers. All arms use the same hyperparameters.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: stock_optimizer.SGD(0.01),
    "momentum": lambda: stock_optimizer.MomentumSGD(0.01, 0.9),
    "adam": lambda: _Adam(0.01),
}


def stock_update(case: Case, table: runtime.NDArray) -> Callable[[RowSparse], runtime.NDArray]:
    """Compile gradient and update for a case; return a step, which creates a new table."""
    optimizer = OPTIMIZERS[case.formula]()
    with filter_stderr(lambda line: any(known in line for known in _WARNINGS)):
        module, target = _module(case, optimizer), host_target()
        machine = create_vm(tvm.compile(module, target), target)
    params, state = [table], optimizer.state

    def step(gradient: RowSparse) -> runtime.NDArray:
        nonlocal params, state
        dense = machine["backward"](params[0], gradient.indices, gradient.values)
        params, state = machine["update"](params, [dense], state)
        return params[0]

    return step


def _module(case: Case, optimizer: Any) -> tvm.IRModule:
    table = relax.Var("table", relax.TensorType((case.rows, case.width), "float32"))
    ids = relax.Var("ids", relax.TensorType((case.lookups,), "int32"))
    cotangent = relax.Var("cotangent", relax.TensorType((case.lookups, case.width), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("backward", [table, ids, cotangent]):
        with builder.dataflow():
            gradient = relax.op.grad.take_backward(cotangent, table, ids, axis=0)
            output = builder.emit_output(gradient)
        builder.emit_func_output(output)
    optimizer.init(table)
    module = builder.get()
    module["update"] = optimizer.get_function().with_attr("global_symbol", "update")
    return module
