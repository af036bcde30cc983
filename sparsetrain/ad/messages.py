# SPDX-License-Identifier: Apache-2.0
"""Error messages of the reverse pass: the operator, the parameter, and the ways out."""

from __future__ import annotations

from typing import Any

from sparsetrain.ad.cotangent import Cotangent, is_row_sparse
from sparsetrain.ad.differentiable import extents_of

# Operators without a derivative, or with one in this package's form of them -> the way out.
_WAYS_OUT = {
    "relax.nn.dropout": "use models.Dropout, or ad.dropout with a key of the step",
    "relax.nn.attention_var_len": "use attention, with a bias that is low where there is nothing",
    "relax.median": "use a mean, or weights that depend on no parameter",
    "relax.dynamic_strided_slice": "use strided_slice",
    "relax.unique": "make ids unique before the model",
    "relax.slice_scatter": "concatenate the kept and the written parts",
    "relax.ewise_fma": "use multiply and add",
    "relax.quantize": "train in floats, then quantize",
}


def call_name(call: Any) -> str:
    """Name of a call's operator, or of its function of the module."""
    return str(getattr(call.op, "name", None) or getattr(call.op, "name_hint", call.op))


def wrong_shape(maker: str, cotangent: Any, target: Any, parameter: str) -> str:
    """Message for a rule that returned a cotangent of the wrong shape."""
    found, wanted = (", ".join(map(str, extents_of(v) or ())) for v in (cotangent, target))
    return (
        f"the rule of operator {maker!r} gives a cotangent of shape ({found}) for an argument of "
        f"shape ({wanted}), on the way to parameter {parameter!r}"
    )


def missing_rule(call: Any, cotangent: Cotangent | None, parameter: str) -> str:
    """Name an operator without a rule for this kind of cotangent."""
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
    """Name a rule that leaves out an argument which needs a gradient."""
    return (
        f"the rule of operator {call.op.name!r} gives no cotangent for argument {position}, which "
        f"depends on parameter {parameter!r}: put ad.densify around a table that is looked up "
        "after this operator, or register a rule with ad.defvjp that returns one part per argument"
    )
