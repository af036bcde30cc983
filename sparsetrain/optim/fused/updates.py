# SPDX-License-Identifier: Apache-2.0
"""Updates inside the gradient program: one call computes gradients, checks them and writes.

The program is staged. First all gradients, the plans of row-sparse ones and the search for NaN and
infinity; then a verdict on them; then the updates, in place. An update does nothing unless the
verdict is good, so whatever has to precede the first write does. Which updates there are is a
`Layout`; a rule that needs more in between has none.

The bodies of the kernels are those of the optimizer's own, and so are the bits. What a step gives
them lies in an array: another learning rate compiles nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.sym import Analyzer

from sparsetrain.kernels.table_formats import computed_in, is_half, seen_as
from sparsetrain.optim.finite import STRIPS, nonfinite_kernel
from sparsetrain.optim.fused import kernels
from sparsetrain.optim.fused.layout import (
    KEYS,
    NUMBERS,
    REPORT,
    WORK,
    DenseUpdate,
    Layout,
    RowsUpdate,
    Structure,
    numbers_shape,
    report_size,
    slot_name,
    tables_of,
)
from sparsetrain.optim.kernel_spec import KernelSpec
from sparsetrain.optim.state import slot_shape
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.sparse_tensor.column_plan import column_plan_kernel, described
from sparsetrain.sparse_tensor.plan_kernel import plan_kernel
from sparsetrain.sparse_tensor.strips import NOTES, digits_of


def fuse_updates(
    module: tvm.IRModule, function: str, structure: Structure, layout: Layout
) -> tvm.IRModule:
    """Append the updates to a gradient function.

    Parameters
    ----------
    module : tvm.IRModule
        Its `function` returns a tuple: the loss, then the leaves of the gradients.
    function : str
        Keeps its name; it returns the loss alone. Arguments are added at the end: the slots of
        each parameter, `NUMBERS` (`numbers_shape`) float64, `KEYS` (tables, 2) int64 with the
        random bits' keys of each table, `WORK` (S, NOTES) int32 for S strips of a sort, at least
        `strips_of` the layout, `REPORT` (`report_size`,) int64, which is written.
    structure : mapping
        Parameter -> kind of its gradient.
    layout : Layout
        The updates; their parameters and slots are written.

    Returns
    -------
    tvm.IRModule
        A new module.
    """
    old = module[function]
    tail = _Tail(relax.BlockBuilder(module), old, structure, layout)
    tail.check()
    for dense in layout.dense:
        tail.update_dense(dense)
    for rows in layout.rows:
        tail.update_rows(rows)
    body = relax.SeqExpr([*old.body.blocks, relax.BindingBlock(tail.bindings)], tail.loss)
    whole = tail.builder.get()
    whole[function] = relax.Function(
        [*old.params, *tail.arguments], body, tail.loss.ty, is_pure=False, attrs=old.attrs
    )
    return relax.transform.Normalize()(whole)


class _Tail:
    """What follows the gradients: bindings in their order, and the arguments that they need."""

    def __init__(
        self, builder: relax.BlockBuilder, old: relax.Function, structure: Structure, layout: Layout
    ) -> None:
        self.builder, self.layout = builder, layout
        self.bindings: list[relax.VarBinding] = []
        self.params = {param.name: param for param in old.params}
        self.tables = tables_of(structure)
        fields = old.body.body.ty.fields
        leaves = (
            self._bind(relax.TupleGetItem(old.body.body, place), field)
            for place, field in enumerate(fields)
        )
        self.loss = next(leaves)
        self.gradients: dict[str, Any] = {}
        for name, template in structure.items():
            taken = [next(leaves) for _ in (template.leaves if template else (None,))]
            self.gradients[name] = template.with_leaves(tuple(taken)) if template else taken[0]
        self.slots = {
            name: [
                relax.Var(slot_name(name, slot.name), self._slot_type(name, slot))
                for slot in spec.formula.slots
            ]
            for name, spec in self._recipes().items()
        }
        strips = tvm.tirx.Var("strips", "int64")
        kinds = {
            NUMBERS: (numbers_shape(layout), "float64"),
            KEYS: ((len(self.tables), 2), "int64"),
            WORK: ((strips, NOTES), "int32"),
            REPORT: ((report_size(structure),), "int64"),
        }
        self.step = {name: relax.Var(name, relax.TensorType(*kind)) for name, kind in kinds.items()}
        self.plans: dict[str, dict[str, Any]] = {}

    @property
    def arguments(self) -> list[relax.Var]:
        """Those that are added to the function's."""
        return [*(slot for slots in self.slots.values() for slot in slots), *self.step.values()]

    def _recipes(self) -> dict[str, KernelSpec]:
        dense = {name: update.rule for update in self.layout.dense for name in update.names}
        rows = {update.name: update.rule for update in self.layout.rows}
        return {name: self.layout.specs[rule] for name, rule in (dense | rows).items()}

    def _slot_type(self, name: str, slot: Any) -> relax.TensorType:
        ty = self.params[name].ty
        shape = slot_shape(slot, tuple(map(int, ty.shape)))
        return relax.TensorType(shape, computed_in(str(ty.dtype)))

    def _bind(self, value: Any, ty: Any) -> relax.Var:
        var = relax.Var(f"update{len(self.bindings)}", ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def _array(self, shape: Sequence[Any], dtype: str) -> relax.Var:
        """Memory for as long as the program runs."""
        ty = relax.TensorType(shape, dtype)
        return self._bind(relax.op.builtin.alloc_tensor(ty.shape, dtype, 0, "global"), ty)

    def _call(self, name: str, kernel: tvm.tirx.PrimFunc, arguments: Sequence[Any]) -> None:
        """Call a kernel, which writes into its arguments; profiles show the name."""
        callee = self.builder.add_func(kernel, name)
        self._bind(relax.Call(callee, list(arguments)), relax.TupleType([]))

    def check(self) -> None:
        """Make the plans, search all values, and write the report."""
        sparse = {name: self.gradients[name] for name in self.tables}
        self.plans = {name: self._plan(name, gradient) for name, gradient in sparse.items()}
        values = [
            self.loss,
            *(sparse[n].values if n in sparse else g for n, g in self.gradients.items()),
        ]
        kinds = [(str(value.ty.dtype), len(value.ty.shape)) for value in values]
        found = self._array((len(values), STRIPS), "int32")
        self._call("check_for_NaN_and_infinity", nonfinite_kernel(kinds), [*values, found])
        counts = [plan["counts"] for plan in self.plans.values()]
        verdict = kernels.verdict_kernel(len(values), len(counts))
        self._call("verdict", verdict, [found, *counts, self.step[REPORT]])

    def _plan(self, name: str, gradient: RowSparse) -> dict[str, Any]:
        entries, dtype = gradient.indices.ty.shape[0], str(gradient.indices.ty.dtype)
        plan = {
            "keys": self._array((2 * entries,), dtype),
            "order": self._array((2, entries), "int32"),
            "work": self.step[WORK],
            "rows": self._array((entries,), dtype),
            "offsets": self._array((entries + 1,), "int32"),
            "counts": self._array((2,), "int32"),
        }
        kernel, how = self._sort(name, gradient)
        self._call("sort_of_rows", kernel, [gradient.indices, *plan.values(), *how])
        return plan

    def _sort(self, name: str, gradient: RowSparse) -> tuple[tvm.tirx.PrimFunc, list[Any]]:
        """What makes a plan, and its last arguments."""
        columns = dict(self.layout.columns).get(name, ())
        entries, features = gradient.indices.ty.shape[0], len(columns)
        dtype = str(gradient.indices.ty.dtype)
        if features and gradient.source is None and _is_multiple(entries, features):
            table = relax.const(described(columns, dtype))
            return column_plan_kernel(dtype, features), [table]
        numbers = (*digits_of(gradient.num_rows, dtype), gradient.num_rows)
        return plan_kernel(dtype), [relax.prim_value(n) for n in numbers]

    def update_dense(self, update: DenseUpdate) -> None:
        """Update some parameters by their dense gradients."""
        own = [[self.gradients[n], self.params[n], *self.slots[n]] for n in update.names]
        dtype = str(own[0][0].ty.dtype)
        ranks = tuple(len(array[0].ty.shape) for array in own)
        kernel = kernels.dense_kernel(self.layout.specs[update.rule], dtype, ranks, update.rule)
        numbers = [self.step[REPORT], self.step[NUMBERS]]
        self._call("dense_updates", kernel, [*(array for each in own for array in each), *numbers])

    def update_rows(self, update: RowsUpdate) -> None:
        """Update the touched rows of one range."""
        gradient, param = self.gradients[update.name], self.params[update.name]
        plan = self.plans[update.name]
        dtype, table = str(param.ty.dtype), self.tables.index(update.name)
        kind = kernels.RowsKind(
            int(param.ty.shape[1]),
            dtype,
            str(gradient.indices.ty.dtype),
            gradient.source is not None,
        )
        whole = update.first == 0 and update.end == int(param.ty.shape[0])
        span = None if whole else (update.first, update.end)
        spec = self.layout.specs[update.rule]
        kernel = kernels.rows_kernel(spec, kind, (update.rule, table), span)
        source = [] if gradient.source is None else [gradient.source]
        arrays = [plan["rows"], plan["order"], plan["offsets"], *source, gradient.values]
        if is_half(dtype):  # seen as integers
            ty = relax.TensorType(param.ty.shape, seen_as(dtype))
            param = self._bind(relax.op.memory.view(param, param.ty.shape, ty.dtype), ty)
        own = [param, *self.slots[update.name]]
        given = [plan["counts"], self.step[REPORT], self.step[NUMBERS], self.step[KEYS]]
        self._call("update_of_touched_rows", kernel, [*arrays, *own, *given])


def _is_multiple(extent: Any, of: int) -> bool:
    """Whether a length is one whatever its symbols stand for."""
    return bool(Analyzer().can_prove_equal(tvm.tirx.floormod(extent, of), 0))
