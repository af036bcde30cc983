# SPDX-License-Identifier: Apache-2.0
"""Reverse rule of `einsum`; the derivative is an einsum too."""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm import relax, te, tirx
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.accessors import fields
from sparsetrain.errors import ConfigError
from sparsetrain.ops.operand_shapes import is_one

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class _Factor(NamedTuple):
    """A tensor and the letters of its axes."""

    letters: str
    tensor: relax.Expr

    @property
    def extents(self) -> dict[str, Any]:
        """Extents by letter, except extents of 1, which broadcast."""
        sides = zip(self.letters, self.tensor.ty.shape, strict=True)
        return {letter: n for letter, n in sides if not is_one(n)}


def _einsum(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y = einsum("ij,jk->ik", a, b)``.

    Backward: swap result and argument, ``einsum("ik,jk->ij", cotangent, b)``.
    """
    operands = [emit(operand) for operand in fields(call.args[0])]
    inputs, result = _letters(str(call.attrs["subscripts"]), operands, len(output.ty.shape))
    factors = [_Factor(*pair) for pair in zip(inputs, operands, strict=True)]
    return [
        tuple(
            _part(factor, [_Factor(result, cotangent), *factors[:n], *factors[n + 1 :]], builder)
            for n, factor in enumerate(factors)
        )
    ]


def _part(own: _Factor, others: list[_Factor], builder: relax.BlockBuilder) -> relax.Expr:
    """Return the cotangent of one argument.

    The forward einsum sums over letters found only in this argument, so a factor of ones is added
    for them. A broadcast axis is summed. If a letter is repeated, as in ``ii``, only the diagonal
    was read, so the cotangent is zero elsewhere.
    """
    known = {letter for factor in others for letter in factor.extents}
    alone = {letter: n for letter, n in own.extents.items() if letter not in known}
    once = "".join(dict.fromkeys(own.letters))
    letters = {letter for factor in others for letter in factor.letters}
    missing = "".join(x for x in once if x in alone or x not in letters)
    if missing:
        extents = [alone.get(letter, 1) for letter in missing]
        dtype = str(own.tensor.ty.dtype)
        others = [*others, _Factor(missing, emit(op.ones(relax.ShapeExpr(extents), dtype)))]
    part = _product(others, once)
    widened = [once.index(x) for x in once if x in known and x not in own.extents]
    if widened:
        part = emit(op.sum(part, widened, keepdims=True))
    if once == own.letters:
        return part
    return builder.emit_te(_on_diagonal, part, own.tensor, [once.index(x) for x in own.letters])


def _product(factors: list[_Factor], result: str) -> relax.Expr:
    """Return the einsum of tensors and scalars; TVM's `einsum` takes no scalars."""
    tensors = [factor for factor in factors if factor.letters]
    subscripts = f"{','.join(factor.letters for factor in tensors)}->{result}"
    total = emit(op.einsum([factor.tensor for factor in tensors], subscripts))
    for factor in factors:
        total = total if factor.letters else emit(op.multiply(total, factor.tensor))
    return total


def _on_diagonal(part: te.Tensor, like: te.Tensor, places: list[int]) -> te.Tensor:
    """Return `part` where axes with the same letter have equal indices, and zero elsewhere."""

    def element(*index: Any) -> Any:
        first = [index[places.index(n)] for n in range(len(part.shape))]
        same = [i == first[n] for i, n in zip(index, places, strict=True)]
        return tirx.if_then_else(tirx.all(*same), part(*first), tirx.const(0, part.dtype))

    return te.compute(like.shape, element, "diagonal_cotangent")


def _letters(subscripts: str, operands: list[relax.Expr], rank: int) -> tuple[list[str], str]:
    """Return a letter for each axis of each argument and of the result."""
    written, arrow, result = subscripts.replace(" ", "").partition("->")
    inputs, free = written.split(","), [x for x in _LETTERS if x not in subscripts]
    for n, (own, operand) in enumerate(zip(inputs, operands, strict=True)):
        count = len(operand.ty.shape) - len(own.replace("...", ""))
        inputs[n] = own.replace("...", "".join(free[:count][::-1]))  # from the last axis on
    if not arrow:
        counts = "".join(inputs)
        once = [x for x in sorted(set(counts)) if counts.count(x) == 1]
        result = "..." * ("..." in written) + "".join(x for x in once if x not in free)
    result = result.replace("...", "".join(free[: rank - len(result.replace("...", ""))][::-1]))
    sides = zip([*inputs, result], [*(len(x.ty.shape) for x in operands), rank], strict=True)
    # TVM does not sum the axes of an ellipsis that the result leaves out.
    lost = bool(arrow) and "..." in written and "..." not in subscripts.partition("->")[2]
    if lost or any(len(letters) != extents for letters, extents in sides):
        raise ConfigError(
            f"relax.einsum: no derivative for {subscripts!r}: write a letter for every axis, and "
            "the result behind '->'"
        )
    return inputs, result


RULES = {"relax.einsum": _einsum}
