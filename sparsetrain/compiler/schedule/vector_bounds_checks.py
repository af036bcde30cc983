# SPDX-License-Identifier: Apache-2.0
"""Pass that checks array bounds once per vector instead of once per element.

Packing pads: `packed[j] = source[j] if j < n else 0`. Vectorized, that is a branch and a load for
every element. Only the last vector of a row needs it; the others are copied whole. At 128 rows,
this saves a tenth of a product of 512 by 367.

Cost: a comparison per vector. Invariant: values are unchanged.
"""

from tvm import s_tir, tirx
from tvm.ir import Call, Range, TensorRegion
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer


def copy_whole_vectors(sch: s_tir.Schedule, padding: SBlockRV) -> None:
    """Put `if the last lane is inside` around a vectorised copy that pads, and a plain copy there.

    The last step of a schedule: the packed buffer has two writers afterwards, which primitives
    refuse. Blocks that do not pad, or are not vectorised, stay as they are.
    """
    *_, outer, lane = (sch.get(loop) for loop in sch.get_loops(padding))
    realize = lane.body
    store = realize.block.body
    if lane.kind != tirx.ForKind.VECTORIZED or not _is_guarded(store.value):
        return
    inside, value, _ = store.value.args
    copy = _plain_copy(lane, tirx.BufferStore(store.buffer, value, store.indices))
    body = tirx.IfThenElse(_at_last_lane(inside, realize, lane), copy, lane)
    new = tirx.For(outer.loop_var, outer.min, outer.extent, outer.kind, body)
    sch.state.replace(sch.get_sref(sch.get_loops(padding)[-2]), new, {})


def _plain_copy(lane: tirx.For, store: tirx.Stmt) -> tirx.For:
    """The loop `lane` around `store`, with variables of its own: one may be bound only once."""
    realize = lane.body
    block = s_tir.SBlock(realize.block.iter_vars, [], [], "copy", store)
    realize = s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)
    loop = tirx.For(lane.loop_var, lane.min, lane.extent, lane.kind, realize)
    loop = s_tir.renew_defs(tirx.PrimFunc([], loop)).body
    realize = loop.body
    store = realize.block.body
    reads = [_element(store.value.source, store.value.indices)]
    writes = [_element(store.buffer, store.indices)]
    block = s_tir.SBlock(realize.block.iter_vars, reads, writes, "copy", store)
    realize = s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, realize)


def _element(buffer: tirx.Buffer, index: list[tirx.Expr]) -> TensorRegion:
    return tirx.BufferRegion(buffer, [Range.from_min_extent(i, 1) for i in index])


def _is_guarded(value: tirx.Expr) -> bool:
    return isinstance(value, Call) and value.op.name == "prim.if_then_else"


def _at_last_lane(condition: tirx.Expr, realize: s_tir.SBlockRealize, lane: tirx.For) -> tirx.Expr:
    """`condition`, over the axes of a block, in terms of the loops around the vector."""
    last, axes = Analyzer(), Analyzer()
    last.bind(lane.loop_var, lane.extent - 1)
    for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        axes.bind(axis.var, last.simplify(value))
    return axes.simplify(condition)
