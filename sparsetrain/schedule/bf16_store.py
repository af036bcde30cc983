# SPDX-License-Identifier: Apache-2.0
"""Products whose result is stored as bfloat16: one instruction rounds 16 sums.

TVM 0.27 makes such a cast five operations on integers. At the end of a short sum, over 13 inputs or
64, they are a tenth of a product.

Invariant: rounding is to nearest even, as TVM's; denormal numbers become zero, as in operands.
"""

import tvm
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from .bf16_shape import LANES
from .product import Extent


def store_rounded(sch: s_tir.Schedule, epilogue: SBlockRV, columns: Extent) -> None:
    """Let an epilogue that ends with a cast to bfloat16 store vectors by a helper.

    Its innermost loop must be vectorised and `columns` whole vectors, else nothing is done.
    """
    *_, loop = sch.get_loops(epilogue)
    lane, block = sch.get(loop), sch.get(epilogue)
    store, column = block.body, block.iter_vars[-1].var
    whole = isinstance(columns, int) and columns % LANES == 0
    if lane.kind != tirx.ForKind.VECTORIZED or not whole or not _is_rounding(store.value):
        return
    value = _vector(store.value.value, column)
    if value is None:
        return
    address = tirx.address_of(tirx.BufferLoad(store.buffer, store.indices))
    call = tirx.call_extern("int32", "sparsetrain_store_half", address, value)
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
    """`value` in the 16 columns from `column` on; None if TVM makes that no vector."""
    lane = tirx.Var("lane", "int64")
    of_column = tirx.PrimFunc([column], tirx.Evaluate(value))
    value = of_column.specialize({column: column + lane}).body.value
    store = tirx.BufferStore(tirx.decl_buffer((LANES,), "float32"), value, [lane])
    loop = tirx.For(lane, 0, LANES, tirx.ForKind.VECTORIZED, store)
    module = tvm.IRModule({"main": tirx.PrimFunc([], loop)})
    store = tirx.transform.VectorizeLoop()(module)["main"].body
    return store.value if isinstance(store, tirx.BufferStore) else None


def _widened(region: tirx.BufferRegion, column: tirx.Var) -> tirx.BufferRegion:
    """What is read or written in 16 columns, if in one it is `region`."""
    return tirx.BufferRegion(
        region.source,
        [
            ir.Range.from_min_extent(r.min, LANES) if r.min.same_as(column) else r
            for r in region.region
        ],
    )
