# SPDX-License-Identifier: Apache-2.0
"""Target features that decide which kernels are used, and the processor where no feature says so.

They decide how a product is scheduled, which interaction kernel is used and what
``precision="bf16"`` rounds. `host` finds the features that this machine's CPU really has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tvm.target import Target
from tvm.target.codegen import target_has_features

from sparsetrain.runtime.host import host_target

_BF16_DOT, _AMX_BF16 = "avx512bf16", "amx-bf16"
_BF16_CAPABILITY = 80  # the lowest compute capability whose tensor cores take bfloat16

Choice = TypeVar("Choice")


def has_bf16_dot(target: Target | None) -> bool:
    """Whether a target is a CPU with AVX512_BF16: rounding, and dot products of pairs."""
    return _has(target, _BF16_DOT)


def has_amx_tiles(target: Target | None) -> bool:
    """Whether a target is a CPU with AMX for bfloat16, and AVX512_BF16 to round for it."""
    return _has(target, _BF16_DOT, _AMX_BF16)


def has_tensor_cores(target: Target | None) -> bool:
    """Whether a target is a GPU whose tensor cores take float16 and bfloat16: sm_80 or later."""
    if target is None or target.kind.name != "cuda":
        return False
    digits = "".join(c for c in str(target.attrs["arch"]) if c.isdigit())
    return bool(digits) and int(digits) >= _BF16_CAPABILITY


def select_by_cpu(choices: Mapping[str, Choice], target: Target | None = None) -> Choice:
    """The choice for a processor, by the beginning of LLVM's name for it.

    Parameters
    ----------
    choices : mapping from str to object
        Tried in order; ``""`` comes last and matches every name.
    target : Target, optional
        This machine's by default, and where the target names no processor.
    """
    targets = [host_target()] if target is None else [target, host_target()]
    name = next(filter(None, (str(each.attrs.get("mcpu", "")) for each in targets)), "")
    return next(choice for start, choice in choices.items() if name.startswith(start))


def _has(target: Target | None, *features: str) -> bool:
    """Whether a target is a CPU with all of these features, as LLVM calls them."""
    if target is None or target.kind.name != "llvm":
        return False
    return bool(target_has_features([*features], target))
