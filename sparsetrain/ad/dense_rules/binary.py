# SPDX-License-Identifier: Apache-2.0
"""Functions of two elements, one of which may be broadcast: then its cotangent is summed."""

from __future__ import annotations

from typing import Any

from tvm.relax import op

from sparsetrain.ad.dense_rules.reading import constant, fitted


def _where(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Backward: the cotangent to the side that was taken, 0 to the other."""
    condition, left, right = call.args
    zero = constant(0, output)
    parts = op.where(condition, cotangent, zero), op.where(condition, zero, cotangent)
    return [None, *(fitted(p, output, x) for p, x in zip(parts, (left, right), strict=True))]


def _power(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Backward: ``y x**(y - 1) cotangent`` and ``z log(x) cotangent`` for ``z = x**y``.

    0 for x where y is 0, and for y where x is 0, as in PyTorch; elsewhere these would be NaN.
    """
    x, y = call.args
    zero, one = constant(0, output), constant(1, output)
    slope = op.multiply(y, op.power(x, op.subtract(y, one)))
    base = op.where(op.equal(y, zero), zero, op.multiply(cotangent, slope))
    growth = op.multiply(output, op.log(op.where(op.equal(x, zero), one, x)))
    return [fitted(base, output, x), fitted(op.multiply(cotangent, growth), output, y)]


def _log_add_exp(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Forward: ``log(exp(x) + exp(y))``. Backward: ``sigmoid(x - y)`` and ``sigmoid(y - x)``."""
    x, y = call.args
    return [
        fitted(op.multiply(op.sigmoid(op.subtract(a, b)), cotangent), output, a)
        for a, b in ((x, y), (y, x))
    ]


RULES = {
    "relax.where": _where,
    "relax.power": _power,
    "relax.log_add_exp": _log_add_exp,
}
