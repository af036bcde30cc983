# SPDX-License-Identifier: Apache-2.0
"""Update function: checks and in-place updates as the tail of a Relax function.

The tail has three stages: plans of the row-sparse gradients and a search for NaN and infinity; a
verdict from these checks; the updates, which do nothing unless the verdict is good. So everything
that can fail precedes the first write. The function before the tail computes the gradients
(`append_update`), or only returns its arguments (`given_gradients`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from sparsetrain.compiler.free_rows import note_updates, rows_of
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.optim.update.check_kernel import CHUNKS, nonfinite_kernel, verdict_kernel
from sparsetrain.optim.update.dense_kernel import dense_kernel
from sparsetrain.optim.update.layout import (
    NOISE_KEYS,
    NUMBERS,
    REPORT,
    SCRATCH,
    DenseUpdate,
    Layout,
    Structure,
    keys_shape,
    numbers_shape,
    report_size,
    slot_name,
    tables_of,
)
from sparsetrain.optim.update.rows_kernel import RowsKind, rows_kernel
from sparsetrain.runtime import NDArray
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.sparse_tensor.plan_kernel import CHUNK_NOTES, plan_kernel
from sparsetrain.system.locks import with_builder_lock
from sparsetrain.tables.formula import KernelSpec
from sparsetrain.tables.slots import matrix_shape, slot_shape, slots_of


def append_update(
    module: tvm.IRModule, function: str, structure: Structure, layout: Layout
) -> tvm.IRModule:
    """Append an update to a gradient function.

    Parameters
    ----------
    module : tvm.IRModule
        Its `function` returns a tuple: the loss, then the leaves of the gradients.
    function : str
        Name of the function; the new one returns only the loss. Arguments are added at the end: the
        slots of each parameter, `NUMBERS` (`numbers_shape`) float64, `NOISE_KEYS` (`keys_shape`)
        int64, `SCRATCH` (S, CHUNK_NOTES) int32 for a sort in S chunks, `REPORT` (`report_size`,)
        int64, which is written.
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
    tail = _UpdateBuilder(relax.BlockBuilder(module), old, structure, layout)
    tail.check()
    for dense in layout.dense:
        tail.update_dense(dense)
    for place in range(len(layout.rows)):
        tail.update_rows(place)
    body = relax.SeqExpr([*old.body.blocks, relax.BindingBlock(tail.bindings)], tail.loss)
    whole = tail.builder.get()
    whole[function] = note_updates(
        relax.Function(
            [*old.params, *tail.arguments], body, tail.loss.ty, is_pure=False, attrs=old.attrs
        ),
        tail.beside_tables,
    )
    return relax.transform.Normalize()(whole)


@with_builder_lock
def given_gradients(
    function: str,
    params: Mapping[str, NDArray],
    gradients: Mapping[str, NDArray | RowSparse],
    loss: NDArray,
) -> tuple[tvm.IRModule, dict[str, RowSparse | None]]:
    """Build a function that returns its arguments: a loss, and gradients of these kinds.

    Lengths of row-sparse gradients are symbolic. The parameters are also arguments, after the
    leaves (`leaves_of`), for `append_update` to write.

    Returns
    -------
    module, structure
        Arguments of `append_update`.
    """
    structure: dict[str, RowSparse | None] = {}
    leaves = [_variable(":loss", loss.shape, str(loss.dtype))]
    for number, (name, gradient) in enumerate(gradients.items()):
        if not isinstance(gradient, RowSparse):
            leaves.append(_variable(f"{name}:gradient", gradient.shape, str(gradient.dtype)))
            structure[name] = None
            continue
        entries = tvm.tirx.Var(f"entries{number}", "int64")
        pooled = gradient.source is not None
        stored = tvm.tirx.Var(f"stored{number}", "int64") if pooled else entries
        shapes = [(entries,), (stored, gradient.width), (entries,)]
        own = tuple(
            _variable(f"{name}:{part}", shape, str(leaf.dtype))
            for part, shape, leaf in zip(_PARTS, shapes, gradient.leaves, strict=False)
        )
        structure[name] = gradient.with_leaves(own)
        leaves += own
    variables = [_variable(n, params[n].shape, str(params[n].dtype)) for n in gradients]
    builder = relax.BlockBuilder()
    with builder.function(function, [*leaves, *variables], attrs={"num_input": len(leaves)}):
        with builder.dataflow():
            output = builder.emit_output(relax.Tuple(leaves))
        builder.emit_func_output(output)
    return builder.get(), structure


_PARTS = "indices", "values", "source"


def _variable(name: str, shape: Sequence[Any], dtype: str) -> relax.Var:
    return relax.Var(name, relax.TensorType([*shape], dtype))


class _UpdateBuilder:
    """Builds the bindings that follow the gradients, and the arguments that they need."""

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
        self.slots: dict[str, dict[str, relax.Var]] = {}
        for name, spec in self._specs():
            own = self.slots.setdefault(name, {})
            for slot, dtype in slots_of(spec, str(self.params[name].ty.dtype)):
                kind = slot_shape(slot, self._shape(name)), dtype
                own.setdefault(slot.name, _variable(slot_name(name, slot.name), *kind))
        chunks = tvm.tirx.Var("chunks", "int64")
        kinds = {
            NUMBERS: (numbers_shape(layout), "float64"),
            NOISE_KEYS: (keys_shape(layout), "int64"),
            SCRATCH: ((chunks, CHUNK_NOTES), "int32"),
            REPORT: ((report_size(structure),), "int64"),
        }
        self.step = {name: _variable(name, *kind) for name, kind in kinds.items()}
        self.plans: dict[str, dict[str, Any]] = {}

    @property
    def arguments(self) -> list[relax.Var]:
        """The arguments that the update adds to the function."""
        slots = [slot for slots in self.slots.values() for slot in slots.values()]
        return [*slots, *self.step.values()]

    @property
    def beside_tables(self) -> dict[str, list[str]]:
        """Table -> names of the arguments for its slots, which have as many rows."""
        return {name: [array.name for array in self.slots[name].values()] for name in self.tables}

    def _specs(self) -> Iterator[tuple[str, KernelSpec]]:
        """Yield each parameter with the spec of each of its updates."""
        for dense in self.layout.dense:
            yield from ((name, self.layout.specs[dense.rule].of_all_rows) for name in dense.names)
        for rows in self.layout.rows:
            yield rows.name, self.layout.specs[rows.rule]

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(map(int, self.params[name].ty.shape))

    def _bind(self, value: Any, ty: Any) -> relax.Var:
        var = relax.Var(f"update{len(self.bindings)}", ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def _array(self, shape: Sequence[Any], dtype: str) -> relax.Var:
        """Allocate memory that is valid while the program runs."""
        ty = relax.TensorType(shape, dtype)
        return self._bind(relax.op.builtin.alloc_tensor(ty.shape, dtype, 0, "global"), ty)

    def _view(self, array: relax.Var, shape: Sequence[int], dtype: str | None = None) -> relax.Var:
        """View an array with a new shape or dtype."""
        ty = relax.TensorType(shape, dtype or str(array.ty.dtype))
        same = [*map(int, array.ty.shape)] == [*shape]
        if same and str(array.ty.dtype) == str(ty.dtype):
            return array
        return self._bind(relax.op.memory.view(array, None if same else ty.shape, ty.dtype), ty)

    def _call(self, name: str, kernel: tvm.tirx.PrimFunc, arguments: Sequence[Any]) -> None:
        """Call a kernel, which writes to its arguments; profiles show the name."""
        callee = self.builder.add_func(kernel, name)
        self._bind(relax.Call(callee, list(arguments)), relax.TupleType([]))

    def check(self) -> None:
        """Make the plans, search all values for NaN and infinity, and write the report."""
        sparse = {name: self.gradients[name] for name in self.tables}
        self.plans = {name: self._plan(name) for name in sparse}
        values = [
            self.loss,
            *(sparse[n].values if n in sparse else g for n, g in self.gradients.items()),
        ]
        kinds = [(str(value.ty.dtype), len(value.ty.shape)) for value in values]
        found = self._array((len(values), CHUNKS), "int32")
        self._call("check_for_NaN_and_infinity", nonfinite_kernel(kinds), [*values, found])
        counts = [plan["counts"] for plan in self.plans.values()]
        verdict = verdict_kernel(len(values), len(counts))
        self._call("verdict", verdict, [found, *counts, self.step[REPORT]])

    def _plan(self, name: str) -> dict[str, Any]:
        gradient = self.gradients[name]
        entries, dtype = gradient.indices.ty.shape[0], str(gradient.indices.ty.dtype)
        plan = {
            "keys": self._array((2 * entries,), dtype),
            "order": self._array((2, entries), "int32"),
            "work": self.step[SCRATCH],
            "rows": self._array((entries,), dtype),
            "offsets": self._array((entries + 1,), "int32"),
            "counts": self._array((2,), "int32"),
        }
        rows = self._bind(rows_of(self.params[name]), tvm.ir.PrimType("int64"))
        self._call("sort_of_rows", plan_kernel(dtype), [gradient.indices, *plan.values(), rows])
        return plan

    def update_dense(self, update: DenseUpdate) -> None:
        """Update some parameters with their dense gradients."""
        spec = self.layout.specs[update.rule]
        own = [
            [self._whole(a) for a in (self.gradients[n], self.params[n], *self.slots[n].values())]
            for n in update.names
        ]
        span = update.rows
        if span is not None and not spec.formula.by_row:
            width = matrix_shape(self._shape(update.names[0]))[1]
            span = span[0] * width, span[1] * width
        dtype = str(own[0][0].ty.dtype)
        ranks = tuple(len(array[0].ty.shape) for array in own)
        kernel = dense_kernel(spec, dtype, ranks, update.rule, span)
        numbers = [self.step[REPORT], self.step[NUMBERS]]
        self._call("dense_updates", kernel, [*(array for each in own for array in each), *numbers])

    def _whole(self, array: relax.Var) -> relax.Var:
        """View a scalar as (1,); return any other array unchanged."""
        return array if len(array.ty.shape) else self._view(array, (1,))

    def update_rows(self, place: int) -> None:
        """Update one range of a table with its row-sparse gradient."""
        update = self.layout.rows[place]
        spec, gradient = self.layout.specs[update.rule], self.gradients[update.name]
        plan, param = self.plans[update.name], self.params[update.name]
        dtype, (rows, columns) = str(param.ty.dtype), matrix_shape(self._shape(update.name))
        stored = format_of(dtype)
        width = stored.width(columns)
        kind = RowsKind(
            width,
            dtype,
            str(gradient.indices.ty.dtype),
            gradient.source is not None,
            update.every_row,
        )
        whole = update.first == 0 and update.end == rows
        source = [] if gradient.source is None else [gradient.source]
        shapes = {"element": (rows, width), "row": (rows,)}
        slots = [(self.slots[update.name][slot.name], slot) for slot, _ in slots_of(spec, dtype)]
        self._call(
            "update_of_every_row" if update.every_row else "update_of_touched_rows",
            rows_kernel(spec, kind, update.rule, place, whole),
            [
                *(plan["rows"], plan["order"], plan["offsets"], *source, gradient.values),
                self._view(param, (rows, columns), stored.seen),
                *(self._view(variable, shapes[slot.per]) for variable, slot in slots),
                *(plan["counts"], self.step[REPORT], self.step[NUMBERS], self.step[NOISE_KEYS]),
            ],
        )


def leaves_of(loss: NDArray, gradients: Mapping[str, NDArray | RowSparse]) -> dict[str, NDArray]:
    """Return the arguments of the function that `given_gradients` builds, by name."""
    leaves = {":loss": loss}
    for name, gradient in gradients.items():
        if isinstance(gradient, RowSparse):
            parts = zip(_PARTS, gradient.leaves, strict=False)
            leaves |= {f"{name}:{part}": leaf for part, leaf in parts}
        else:
            leaves[f"{name}:gradient"] = gradient
    return leaves
