# SPDX-License-Identifier: Apache-2.0
"""Which instructions for products of halves a target has: the one place that names them.

They decide which rules schedule a product (`schedule`), which kernels an interaction gets
(`models`) and what ``precision="bf16"`` rounds (`precision`). What this machine's CPU really has,
whatever its name promises, is the matter of `host`.
"""

from __future__ import annotations

from tvm.target import Target
from tvm.target.codegen import target_has_features

_PAIRS, _TILES = "avx512bf16", "amx-bf16"
_TENSOR_CORES = 80  # compute capability: those that know bfloat16


def has_pairs(target: Target | None) -> bool:
    """Whether a target is a CPU that rounds to bfloat16 and multiplies pairs, by AVX512_BF16."""
    return _has(target, _PAIRS)


def has_tiles(target: Target | None) -> bool:
    """Whether it multiplies tiles of bfloat16 as well, by AMX; AVX512_BF16 rounds for them."""
    return _has(target, _PAIRS, _TILES)


def has_tensor_cores(target: Target | None) -> bool:
    """Whether a target is a GPU that multiplies halves of both kinds: sm_80 and later."""
    if target is None or target.kind.name != "cuda":
        return False
    digits = "".join(c for c in str(target.attrs["arch"]) if c.isdigit())
    return bool(digits) and int(digits) >= _TENSOR_CORES


def _has(target: Target | None, *features: str) -> bool:
    """Whether a target is a CPU with all of these features, as LLVM calls them."""
    if target is None or target.kind.name != "llvm":
        return False
    return bool(target_has_features([*features], target))
