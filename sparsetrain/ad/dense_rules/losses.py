# SPDX-License-Identifier: Apache-2.0
"""Cross-entropies: of logits of clicks, which is an operator of ours, and of classes."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op
from tvm.sym import Analyzer

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.reductions import mean_cotangent
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.relax_op import define_op


def _bce_type(call: Any) -> relax.Type:
    logits, labels = (argument.ty for argument in call.args)
    if logits.dtype != labels.dtype or not _are_equal(logits.shape, labels.shape):
        raise ConfigError(  # the kernel would read beyond the labels
            f"bce_with_logits: logits are {logits}, labels {labels}: reshape or cast one of them"
        )
    return logits


def _are_equal(left: Any, right: Any) -> bool:
    equal = Analyzer().can_prove_equal
    return len(left) == len(right) and all(map(equal, left, right))


def _bce_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    def loss(logits: te.Tensor, labels: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            z, y = logits(*index), labels(*index)
            zero = tirx.const(0, logits.dtype)
            return tirx.max(z, zero) - z * y + tirx.log1p(tirx.exp(-tirx.abs(z)))

        return te.compute(logits.shape, element, "bce_with_logits")

    return builder.call_te(loss, *call.args)


_bce_with_logits = define_op("bce_with_logits", ("logits", "labels"), _bce_type, _bce_kernel)


def bce_with_logits(logits: relax.Expr, labels: relax.Expr) -> relax.Expr:
    """Binary cross-entropy of each logit: ``max(z, 0) - z y + log(1 + exp(-|z|))``.

    As `torch.nn.functional.binary_cross_entropy_with_logits` with ``reduction="none"``.

    Parameters
    ----------
    logits : (B, ...) float
        Any finite numbers.
    labels : (B, ...) float
        In [0, 1], of the shape of `logits`.

    Returns
    -------
    (B, ...) float
    """
    return _bce_with_logits(logits, labels)


def _bce(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: ``(sigmoid(z) - y) cotangent`` for the logits, ``-z cotangent`` for the labels."""
    logits, labels = call.args
    return [
        op.multiply(op.subtract(op.sigmoid(logits), labels), cotangent),
        op.negative(op.multiply(logits, cotangent)),
    ]


def _cross_entropy(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``-sum(x y)``, over the first extent if there are more than one.

    Backward: ``-y`` and ``-x`` times the cotangent, over that extent, which may be symbolic.
    """
    x, y = call.args
    rank = len(x.ty.shape)
    if rank > 1:
        one_each = emit(op.zeros([x.ty.shape[0]] + [1] * (rank - 1), str(x.ty.dtype)))
        cotangent = emit(mean_cotangent(cotangent, one_each, axes=list(range(rank)), keepdims=0))
    minus = emit(op.negative(cotangent))
    return [op.multiply(minus, y), op.multiply(minus, x)]


def _nll_loss(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: TVM's, for the predictions. Weights of classes have none."""
    rule = call.op.get_attr("FPrimalGradient")
    predictions = rule(output, call, cotangent, builder)[0]
    return [predictions] + [None] * (len(call.args) - 1)


RULES = {
    "relax.sparsetrain.bce_with_logits": _bce,
    "relax.nn.cross_entropy_with_logits": _cross_entropy,
    "relax.nn.nll_loss": _nll_loss,
}
