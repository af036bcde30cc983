# SPDX-License-Identifier: Apache-2.0
"""Write numbers past the caches of an x86 processor: LLVM IR that a kernel imports by a pragma.

A store into a cache reads the line first, and puts out another that might have been used again.
Past the caches it does neither, but whoever reads the result reads memory: that pays where the
result would not stay in the caches anyway. From what size on, each kernel measures.

Such stores are not ordered with others, those by which a thread says that its task is done
included: each task that wrote so ends with `fence_`, or another thread may read what was there.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

LANES = 16

HELPERS = f"""
declare void @llvm.x86.sse.sfence()
define linkonce_odr i32 @sparsetrain_stream(ptr %to, <{LANES} x float> %numbers)
    alwaysinline nounwind {{
  store <{LANES} x float> %numbers, ptr %to, align 64, !nontemporal !0
  ret i32 0
}}

define linkonce_odr i32 @sparsetrain_fence() alwaysinline nounwind {{
  call void @llvm.x86.sse.sfence()
  ret i32 0
}}
!0 = !{{i32 1}}
"""


def stream_(array: Any, place: list[Any], numbers: Any) -> None:
    """Write a vector of `LANES` numbers of float32, at a place that begins a line of 64 bytes.

    The kernel must import what is called: ``T.attr(0, PRAGMA, HELPERS)``.
    """
    to = T.address_of(tirx.BufferLoad(array, place))
    T.evaluate(tirx.call_extern("int32", "sparsetrain_stream", to, numbers))


def fence_() -> None:
    """End a task that wrote by `stream_`."""
    T.evaluate(tirx.call_extern("int32", "sparsetrain_fence"))
