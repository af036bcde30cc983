# SPDX-License-Identifier: Apache-2.0
"""Error messages of the reverse pass: each names the operator, the parameter and the fix."""

from __future__ import annotations

from typing import Any

from sparsetrain.ad.cotangent import Cotangent, is_row_sparse
from sparsetrain.ad.differentiable import extents_of

# Operators without a derivative here -> the alternative.
_WAYS_OUT = {
    "relax.nn.dropout": "use models.Dropout, or ad.dropout with a key of the step",
    "relax.nn.attention_var_len": "use attention, with a large negative bias at padding",
    "relax.median": "use a mean, or weights that depend on no parameter",
    "relax.dynamic_strided_slice": "use strided_slice",
    "relax.unique": "make ids unique before the model",
    "relax.slice_scatter": "concatenate the kept and the written parts",
    "relax.ewise_fma": "use multiply and add",
    "relax.quantize": "train in floats, then quantize",
}


def call_name(call: Any) -> str:
    """Return the name of a call's operator, or of the module's function that it calls."""
    return str(getattr(call.op, "name", None) or getattr(call.op, "name_hint", call.op))


def wrong_shape(maker: str, cotangent: Any, target: Any, parameter: str) -> str:
    """Report a rule that returned a cotangent of the wrong shape."""
    found, wanted = (", ".join(map(str, extents_of(v) or ())) for v in (cotangent, target))
    return (
        f"the rule of operator {maker!r} gives a cotangent of shape ({found}) for an argument of "
        f"shape ({wanted}), on the way to parameter {parameter!r}"
    )


def missing_rule(call: Any, cotangent: Cotangent | None, parameter: str) -> str:
    """Report an operator without a rule for this kind of cotangent."""
    name = call_name(call)
    if is_row_sparse(cotangent):
        return (
            f"operator {name!r} has no rule for the row-sparse cotangent of parameter "
            f"{parameter!r}: register one with ad.defvjp({name!r}, rule, row_sparse=True), or "
            "accept a dense one with ad.densify around its result or "
            f"densify={parameter.split(', ')}"
        )
    way_out = f"{_WAYS_OUT[name]}; else " if name in _WAYS_OUT else ""
    return (
        f"operator {name!r} has no derivative (needed for parameter {parameter!r}): "
        f"{way_out}register one with ad.defvjp({name!r}, rule), or leave the parameter out of wrt"
    )


def no_part(call: Any, position: int, parameter: str) -> str:
    """Report a rule that returned no cotangent for an argument that needs a gradient."""
    return (
        f"the rule of operator {call.op.name!r} gives no cotangent for argument {position}, which "
        f"depends on parameter {parameter!r}: put ad.densify around a table that is looked up "
        "after this operator, or register a rule with ad.defvjp that returns one part per argument"
    )
