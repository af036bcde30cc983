# SPDX-License-Identifier: Apache-2.0
"""Products and sums by letters: `einsum`, whose derivative is an einsum too."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.reading import fields
from sparsetrain.errors import ConfigError


def _einsum(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Forward: ``y = einsum("ij,jk->ik", a, b)``.

    Backward: result and argument change places, ``einsum("ik,jk->ij", cotangent, b)``; for letters
    that an argument alone has, which are summed in it, a factor of ones is added.
    """
    operands = fields(call.args[0])
    inputs, result = _letters(str(call.attrs["subscripts"]), len(operands))
    parts = []
    for place, (own, operand) in enumerate(zip(inputs, operands, strict=True)):
        others = [n for n in range(len(operands)) if n != place]
        letters, factors = [result], [cotangent]
        for n in others:
            letters.append(inputs[n])
            factors.append(emit(operands[n]))
        alone = "".join(letter for letter in own if letter not in "".join(letters))
        if alone:
            extents = [operand.ty.shape[own.index(letter)] for letter in alone]
            letters.append(alone)
            factors.append(emit(op.ones(relax.ShapeExpr(extents), str(operand.ty.dtype))))
        parts.append(emit(op.einsum(factors, f"{','.join(letters)}->{own}")))
    return [tuple(parts)]


def _letters(subscripts: str, count: int) -> tuple[list[str], str]:
    """The letters of each argument and of the result."""
    given, arrow, result = subscripts.replace(" ", "").partition("->")
    inputs = given.split(",")
    plain = all(len(set(own)) == len(own) and own.isalpha() for own in inputs)
    if not (arrow and plain and len(inputs) == count):
        raise ConfigError(
            f"relax.einsum: no derivative for {subscripts!r}: write letters for every axis, "
            "each once in an argument, and the result behind '->'"
        )
    return inputs, result


RULES = {"relax.einsum": _einsum}
