# SPDX-License-Identifier: Apache-2.0
"""Epilogue of a product: the blocks after it, merged into one that is applied before the store."""

from tvm import s_tir
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.schedule import SBlockRV


def inline_all_but_last(sch: s_tir.Schedule, blocks: list[SBlockInfo]) -> SBlockRV | None:
    """Merge the elementwise blocks into the last one, and return that."""
    for info in blocks[:-1]:
        sch.compute_inline(info.block_rv)
    return blocks[-1].block_rv if blocks else None


def single_consumer(sch: s_tir.Schedule, block: SBlockRV, final: SBlockRV | None) -> SBlockRV:
    """The one block that stores the product: epilogue, removal of the padding, or a plain copy."""
    consumers = sch.get_consumers(block)
    if not consumers:
        return sch.cache_write(block, 0, "global")
    if final is None:
        return consumers[0]
    if sch.get(consumers[0]).name_hint != sch.get(final).name_hint:
        sch.compute_inline(consumers[0])
    return final
