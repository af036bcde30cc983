# SPDX-License-Identifier: Apache-2.0
"""Names of precisions, and the hardware that each requires."""

from __future__ import annotations

from typing import Literal, TypeAlias

from tvm.target import Target

from sparsetrain.compiler.precision.policy import BFLOAT16, BFLOAT16_BY_TILES, FLOAT16, Policy
from sparsetrain.errors import ConfigError
from sparsetrain.runtime.target_features import has_amx_tiles, has_bf16_dot, has_tensor_cores

Precision: TypeAlias = Literal["float32", "bf16", "fp16"]

_POLICIES: dict[str, Policy | None] = {
    "float32": None,
    "bf16": BFLOAT16,
    "fp16": FLOAT16,
}
# Instead of those, where a CPU has AMX tiles.
_POLICIES_BY_TILES: dict[str, Policy | None] = {"bf16": BFLOAT16_BY_TILES}
# Kind of target and dtype of a policy -> whether a target multiplies it, and what is wrong if not.
_NEEDS = {
    ("llvm", "bfloat16"): (has_bf16_dot, "the target {} has no AVX512_BF16 instructions"),
    ("cuda", "bfloat16"): (has_tensor_cores, "a device of {} has no tensor cores for bfloat16"),
    ("cuda", "float16"): (has_tensor_cores, "a device of {} has no tensor cores for float16"),
}


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
    kind = target.kind.name
    if (kind, dtype) not in _NEEDS:
        return f"no {kind} target computes products of {dtype}"
    is_there, complaint = _NEEDS[kind, dtype]
    names = (target.attrs.get(key) for key in ("mcpu", "arch"))
    return None if is_there(target) else complaint.format(next(filter(None, names), kind))


def _named(precision: str, target: Target) -> Policy | None:
    if precision not in _POLICIES:
        known = " or ".join(repr(name) for name in _POLICIES)
        raise ConfigError(f"precision is {known}, not {precision!r}")
    policies = _POLICIES | _POLICIES_BY_TILES if has_amx_tiles(target) else _POLICIES
    return policies[precision]


def _require(policy: Policy, target: Target) -> None:
    missing = lacks(policy.dtype, target)
    if missing is not None:
        raise ConfigError(f"precision: {missing}; use precision='float32'")
