# SPDX-License-Identifier: Apache-2.0
"""Mixed-precision policies, which name the operators that round their operands.

- `always`: operators that round their operands and sum in float32. Each has a test that decides
  for a call whether rounding is worthwhile.
- `neighbours`: operators that may read rounded values. A value that only `always` and `neighbours`
  operators read is stored in half precision; neighbours convert it back and compute in float32.
- All other operators compute in float32, and their operands are stored in float32.

A precision is the name of a policy, such as ``"bf16"``. It needs hardware that multiplies the
policy's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from tvm.target import Target

from sparsetrain.backend import backend_of
from sparsetrain.errors import ConfigError
from sparsetrain.ops.operand_shapes import is_one
from sparsetrain.runtime.host import has_amx_tiles

MOST_VECTORS = 64  # vectors per sample; more do not fit the interaction kernels' cache budget
WIDE = 64  # from this width the interaction's backward pass is faster on AMX tiles than in float32


class Policy(NamedTuple):
    """How a float32 program is converted to mixed precision.

    Attributes
    ----------
    dtype : str
        ``"bfloat16"`` or ``"float16"``.
    always : mapping of str to callable
        Relax operators that round their operands -> a test that decides for each call. Only
        ``relax.matmul`` and the operators in `ROUND_INSIDE` are allowed.
    neighbours : frozenset of str
        Relax operators that may read a rounded value.

    Examples
    --------
    >>> neighbours = BFLOAT16.neighbours | {"relax.max"}
    >>> policy = BFLOAT16._replace(neighbours=neighbours)
    """

    dtype: str
    always: dict[str, Callable[[Any], bool]]
    neighbours: frozenset[str]

    def rounds(self, call: Any) -> bool:
        """Whether the policy rounds the operands of a call."""
        test = self.always.get(call.op.name)
        return test is not None and test(call)


def is_wide_product(call: Any) -> bool:
    """Whether a call is a float32 product of matrices with more than one row and column each.

    A matrix multiplied by a single row or column is read only once, so rounding gains nothing. A
    model's last layer, which computes one logit, thus keeps its precision.
    """
    types = [call.ty, *(operand.ty for operand in call.args)]
    return all(
        t.ndim == 2 and t.shape is not None and str(t.dtype) == "float32" for t in types
    ) and not any(is_one(extent) for t in types for extent in t.shape)


def has_whole_vectors(call: Any) -> bool:
    """Whether an interaction has few enough float32 vectors, with a width divisible by 16.

    The AMX kernel reads each sample once, so it rounds operands as it reads them.
    """
    _, features, width = call.args[1].ty.shape
    floats = all(str(operand.ty.dtype) == "float32" for operand in call.args)
    return floats and int(width) % 16 == 0 and int(features) < MOST_VECTORS


def has_wide_vectors(call: Any) -> bool:
    """Like `has_whole_vectors`, but at a width where AMX speeds up the backward pass too."""
    return has_whole_vectors(call) and int(call.args[1].ty.shape[2]) >= WIDE


# Operators with hand-written kernels that round their operands to the dtype in attribute `rounds`.
ROUND_INSIDE = frozenset(
    {"relax.sparsetrain.interaction", "relax.sparsetrain.interaction_backward"}
)

_PRODUCTS: dict[str, Callable[[Any], bool]] = {"relax.matmul": is_wide_product}
_NEIGHBOURS = frozenset({"relax.greater", "relax.less_equal", "relax.collapse_sum_to", "relax.sum"})

BFLOAT16 = Policy("bfloat16", _PRODUCTS, _NEIGHBOURS)

BFLOAT16_BY_TILES = BFLOAT16._replace(
    always={
        **_PRODUCTS,
        "relax.sparsetrain.interaction": has_whole_vectors,
        "relax.sparsetrain.interaction_backward": has_wide_vectors,
    }
)

FLOAT16 = Policy("float16", _PRODUCTS, _NEIGHBOURS)


Precision: TypeAlias = Literal["float32", "bf16", "fp16"]

_POLICIES: dict[str, Policy | None] = {"float32": None, "bf16": BFLOAT16, "fp16": FLOAT16}
# Policies that replace those above on a CPU with AMX tiles.
_POLICIES_BY_TILES: dict[str, Policy | None] = {"bf16": BFLOAT16_BY_TILES}


def policy_for(precision: str | Policy, target: Target) -> Policy | None:
    """Return the policy of a precision; None for float32.

    Parameters
    ----------
    precision : {"float32", "bf16", "fp16"} or Policy
        A `Policy` is returned unchanged.
    target : Target
        The program's target.

    Raises
    ------
    ConfigError
        If there is no such precision, or the target lacks fast products of its dtype.
    """
    policy = precision if isinstance(precision, Policy) else _named(precision, target)
    missing = policy and lacks(policy.dtype, target)
    if missing:
        raise ConfigError(f"precision: {missing}; use precision='float32'")
    return policy


def lacks(dtype: str, target: Target) -> str | None:
    """Return why `target` has no fast products of `dtype`, or None if it has them."""
    return backend_of(target).lacks(dtype, target)


def _named(precision: str, target: Target) -> Policy | None:
    if precision not in _POLICIES:
        known = " or ".join(repr(name) for name in _POLICIES)
        raise ConfigError(f"precision must be {known}, not {precision!r}")
    policies = _POLICIES | _POLICIES_BY_TILES if has_amx_tiles(target) else _POLICIES
    return policies[precision]
