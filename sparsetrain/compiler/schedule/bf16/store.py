# SPDX-License-Identifier: Apache-2.0
"""Stores of 16 product results at a time, rounded or masked by one instruction.

TVM 0.27 expands a cast to bfloat16 into five integer operations, which take a tenth of the time of
a product with a short sum (13 or 64 inputs). It stores results one by one if a row is not a whole
number of vectors.

Invariant: rounding is to nearest even, as in TVM; denormals become zero, as they do in operands.
"""

import tvm
from tvm import ir, s_tir, tirx
from tvm.ir import TensorLoad
from tvm.s_tir.schedule import SBlockRV

from sparsetrain.compiler.schedule.bf16.tiling import LANES
from sparsetrain.compiler.schedule.product import Extent


def store_rounded(sch: s_tir.Schedule, epilogue: SBlockRV, columns: Extent) -> None:
    """Round and store whole vectors in an epilogue that ends with a cast to bfloat16.

    Nothing changes unless the innermost loop is vectorized and `columns` is a multiple of 16.
    """
    block = sch.get(epilogue)
    store, column = block.body, block.iter_vars[-1].var
    whole = isinstance(columns, int) and columns % LANES == 0
    value = _vector(store.value.value, column) if whole and _is_rounding(store.value) else None
    if value is not None:
        _store_by(sch, epilogue, "sparsetrain_store_half", value)


def store_masked(sch: s_tir.Schedule, epilogue: SBlockRV, columns: Extent) -> None:
    """Store vectors, with a mask on the last one, in an epilogue that only copies float32 sums.

    Nothing changes unless the innermost loop is vectorized and `columns` is symbolic or no multiple
    of 16.
    """
    block = sch.get(epilogue)
    value, column = block.body.value, block.iter_vars[-1].var
    whole = isinstance(columns, int) and columns % LANES == 0
    copies = isinstance(value, TensorLoad) and str(value.ty.dtype) == "float32"
    sums = _vector(value, column) if copies and not whole else None
    if sums is not None:
        count = tirx.Cast("int32", tirx.min(columns - column, tirx.const(LANES, "int64")))
        _store_by(sch, epilogue, "sparsetrain_store", sums, count)


def _store_by(sch: s_tir.Schedule, epilogue: SBlockRV, helper: str, *arguments: tirx.Expr) -> None:
    """Replace the innermost loop of an epilogue with one call if it is vectorized."""
    *_, loop = sch.get_loops(epilogue)
    lane, block = sch.get(loop), sch.get(epilogue)
    if lane.kind != tirx.ForKind.VECTORIZED:
        return
    store, column = block.body, block.iter_vars[-1].var
    address = tirx.address_of(tirx.BufferLoad(store.buffer, store.indices))
    call = tirx.call_extern("int32", helper, address, *arguments)
    reads, writes = ([_widened(r, column) for r in part] for part in (block.reads, block.writes))
    new = s_tir.SBlock(block.iter_vars, reads, writes, block.name_hint, tirx.Evaluate(call))
    old = lane.body
    body = s_tir.SBlockRealize(old.iter_values, old.predicate, new)
    once = tirx.For(lane.loop_var, lane.min, 1, tirx.ForKind.SERIAL, body)
    sch.state.replace(sch.get_sref(loop), once, {block: new})


def _is_rounding(value: tirx.Expr) -> bool:
    return (
        isinstance(value, tirx.Cast)
        and str(value.ty.dtype) == "bfloat16"
        and str(value.value.ty.dtype) == "float32"
    )


def _vector(value: tirx.Expr, column: tirx.Var) -> tirx.Expr | None:
    """Return `value` for the 16 columns from `column` on, or None if TVM cannot vectorize it."""
    lane = tirx.Var("lane", "int64")
    of_column = tirx.PrimFunc([column], tirx.Evaluate(value))
    value = of_column.specialize({column: column + lane}).body.value
    store = tirx.BufferStore(tirx.decl_buffer((LANES,), "float32"), value, [lane])
    loop = tirx.For(lane, 0, LANES, tirx.ForKind.VECTORIZED, store)
    module = tvm.IRModule({"main": tirx.PrimFunc([], loop)})
    store = tirx.transform.VectorizeLoop()(module)["main"].body
    return store.value if isinstance(store, tirx.BufferStore) else None


def _widened(region: tirx.BufferRegion, column: tirx.Var) -> tirx.BufferRegion:
    """Widen the region of one column to the region of 16 columns."""
    return tirx.BufferRegion(
        region.source,
        [
            ir.Range.from_min_extent(r.min, LANES) if r.min.same_as(column) else r
            for r in region.region
        ],
    )
