# SPDX-License-Identifier: Apache-2.0
"""What a user calls a precision, and what a machine must have for it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from tvm.target import Target
from tvm.target.codegen import target_has_features

from sparsetrain.errors import ConfigError
from sparsetrain.precision.policy import BFLOAT16, BFLOAT16_BY_TILES, FLOAT16, Policy

Precision: TypeAlias = Literal["float32", "bf16", "fp16"]

_POLICIES: dict[str, Policy | None] = {
    "float32": None,
    "bf16": BFLOAT16,
    "fp16": FLOAT16,
}
# Instead of those, where a CPU has AMX tiles.
_POLICIES_BY_TILES: dict[str, Policy | None] = {"bf16": BFLOAT16_BY_TILES}
_TILES = "amx-bf16"
# Dtype of a policy -> the feature a CPU needs, as LLVM and as its maker call it.
_NEEDS = {"bfloat16": ("avx512bf16", "AVX512_BF16")}
# Dtype of a policy -> the first compute capability whose tensor cores multiply it.
_CAPABILITIES = {"bfloat16": 80, "float16": 80}


def policy_for(precision: str | Policy, target: Target) -> Policy | None:
    """The policy of a name, None for float32.

    Parameters
    ----------
    precision : {"float32", "bf16", "fp16"} or Policy
        A policy of one's own is taken as it is.
    target : Target
        What runs the program.

    Raises
    ------
    ConfigError
        If there is no such precision, or the target lacks the instructions for it.
    """
    policy = precision if isinstance(precision, Policy) else _named(precision, target)
    if policy is not None:
        _require(policy, target)
    return policy


def lacks(dtype: str, target: Target) -> str | None:
    """Why `target` cannot compute products of `dtype` at speed, or None if it can."""
    if target.kind.name == "cuda" and dtype in _CAPABILITIES:
        arch = str(target.attrs["arch"])
        capability = int("".join(c for c in arch if c.isdigit()))
        enough = capability >= _CAPABILITIES[dtype]
        return None if enough else f"a device of {arch} has no tensor cores for {dtype}"
    if dtype not in _NEEDS:
        return f"no {target.kind.name} target computes products of {dtype}"
    feature, name = _NEEDS[dtype]
    if target.kind.name == "llvm" and target_has_features(feature, target):
        return None
    return f"the target {target.attrs.get('mcpu', target.kind.name)} has no {name} instructions"


def _named(precision: str, target: Target) -> Policy | None:
    if precision not in _POLICIES:
        known = " or ".join(repr(name) for name in _POLICIES)
        raise ConfigError(f"precision is {known}, not {precision!r}")
    by_tiles = target.kind.name == "llvm" and target_has_features(_TILES, target)
    return (_POLICIES | _POLICIES_BY_TILES if by_tiles else _POLICIES)[precision]


def _require(policy: Policy, target: Target) -> None:
    missing = lacks(policy.dtype, target)
    if missing is not None:
        raise ConfigError(f"precision: {missing}; use precision='float32'")
