# SPDX-License-Identifier: Apache-2.0
"""Cross-entropies: of click logits, of classes, and of scores for all rows of a table.

The last computes all (N, V) scores s at once (`linear_cross_entropy`) or in tiles
(`tiled_cross_entropy`). If all are computed at once, the forward pass overwrites s with
``softmax(s) - one_hot(y)``, and the reverse pass multiplies this by the cotangent in place.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op
from tvm.sym import Analyzer

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.reductions import mean_cotangent
from sparsetrain.backend import current
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.relax_op import call_kernel, define_op
from sparsetrain.ops.softmax_loss import scale_rows_kernel, softmax_loss_kernel
from sparsetrain.ops.softmax_tiles import PARTS, tiled_cotangent_kernel, tiled_loss_kernel


def _bce_type(call: Any) -> relax.Type:
    logits, labels = (argument.ty for argument in call.args)
    if logits.dtype != labels.dtype or not _are_equal(logits.shape, labels.shape):
        raise ConfigError(  # else the kernel would read past the end of the labels
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

    The same as `torch.nn.functional.binary_cross_entropy_with_logits` with ``reduction="none"``.

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
    """Forward: ``-sum(x y)``, divided by the first extent if there are several.

    Backward: ``-y`` and ``-x`` times the cotangent, divided by that extent, which may be symbolic.
    """
    x, y = call.args
    rank = len(x.ty.shape)
    if rank > 1:
        one_each = emit(op.zeros([x.ty.shape[0]] + [1] * (rank - 1), str(x.ty.dtype)))
        cotangent = emit(mean_cotangent(cotangent, one_each, axes=list(range(rank)), keepdims=0))
    minus = emit(op.negative(cotangent))
    return [op.multiply(minus, y), op.multiply(minus, x)]


def _nll_loss(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: TVM's, for the predictions. Class weights have no derivative."""
    rule = call.op.get_attr("FPrimalGradient")
    predictions = rule(output, call, cotangent, builder)[0]
    return [predictions] + [None] * (len(call.args) - 1)


def _loss_type(call: Any) -> relax.Type:
    scores = call.args[0].ty
    return relax.TupleType([relax.TensorType((scores.shape[0],), scores.dtype), scores])


def _loss_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    scores, items = (argument.ty for argument in call.args)
    made = current().kernel("linear_cross_entropy", softmax_loss_kernel)(
        _length(scores), str(scores.dtype), str(items.dtype)
    )
    place = builder.add_func(made, "softmax_loss")
    return op.call_tir_inplace(place, relax.Tuple(call.args), [-1, 0], list(call.ty.fields))


def _length(matrix: Any) -> int | None:
    """Return the number of columns; None if it is symbolic, such as the batch size."""
    return int(matrix.shape[1]) if isinstance(matrix.shape[1], tirx.IntImm) else None


def _scale_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    weights = call.args[0].ty
    made = current().kernel("scale_rows", scale_rows_kernel)(
        int(weights.shape[1]), str(weights.dtype)
    )
    place = builder.add_func(made, "scale_rows")
    return op.call_tir_inplace(place, relax.Tuple(call.args), [0], [weights])


# Both kernels overwrite their first argument, so nothing else may read it.
_softmax_loss = define_op("softmax_loss", ("scores", "items"), _loss_type, _loss_kernel)
_scale_rows = define_op("scale_rows", ("w", "f"), lambda call: call.args[0].ty, _scale_kernel)


def linear_cross_entropy(x: relax.Expr, table: relax.Expr, items: relax.Expr) -> relax.Expr:
    """``log sum_v exp(x[n] . table[v]) - x[n] . table[items[n]]``.

    Parameters
    ----------
    x : (N, D) float
    table : (V, D) float
    items : (N,) integers in [0, V)

    Returns
    -------
    (N,) float

    Raises
    ------
    ConfigError
        If an argument has the wrong number of axes.
    """
    _require_matrices("linear_cross_entropy", x, table, items)
    return cross_entropy_(emit(op.matmul(x, emit(op.permute_dims(table)))), items)


def cross_entropy_(scores: relax.Expr, items: relax.Expr) -> relax.Expr:
    """``log sum_v exp(s[n, v]) - s[n, items[n]]`` (N,); overwrites the scores s (N, V).

    Precondition: nothing else reads the scores.
    """
    return relax.TupleGetItem(emit(_softmax_loss(scores, items)), 0)


def _require_matrices(name: str, *arguments: relax.Expr) -> None:
    types = [argument.ty for argument in arguments]
    if [len(ty.shape) for ty in types] != [2, 2, 1]:
        raise ConfigError(f"{name} takes (N, D), (V, D) and (N,), not {', '.join(map(str, types))}")


def _sums(call: Any, *last: Any) -> relax.Type:
    x = call.args[0].ty
    return relax.TensorType([PARTS, x.shape[0], *last], x.dtype)


def _of_loss(call: Any) -> tuple[int, str, str]:
    x, items = call.args[0].ty, call.args[2].ty
    return int(x.shape[1]), str(x.dtype), str(items.dtype)


def _tiled_type(call: Any) -> relax.Type:
    x = call.args[0].ty
    return relax.TupleType([relax.TensorType([x.shape[0]], x.dtype)] * 2)


def _tiled_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    made = current().kernel("tiled_softmax_loss", tiled_loss_kernel)(*_of_loss(call))
    outs = [*call.ty.fields, _sums(call, 2)]
    three = builder.emit(call_kernel(builder, made, "tiled_softmax_loss", list(call.args), outs))
    return relax.Tuple([relax.TupleGetItem(three, n) for n in range(2)])


def _tiled_cotangent_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    name = "tiled_softmax_cotangent"
    made = current().kernel(name, tiled_cotangent_kernel)(*_of_loss(call))
    outs = [*call.ty.fields, _sums(call, call.args[0].ty.shape[1])]
    three = builder.emit(call_kernel(builder, made, name, list(call.args), outs))
    return relax.Tuple([relax.TupleGetItem(three, n) for n in range(2)])


_tiled_loss = define_op("tiled_softmax_loss", ("x", "table", "items"), _tiled_type, _tiled_kernel)
_tiled_cotangent = define_op(
    "tiled_softmax_cotangent",
    ("x", "table", "items", "logarithms", "cotangent"),
    lambda call: relax.TupleType([call.args[0].ty, call.args[1].ty]),
    _tiled_cotangent_kernel,
)


def tiled_cross_entropy(x: relax.Expr, table: relax.Expr, items: relax.Expr) -> relax.Expr:
    """Compute `linear_cross_entropy` in tiles of table rows, never holding all scores at once."""
    _require_matrices("tiled_cross_entropy", x, table, items)
    return relax.TupleGetItem(emit(_tiled_loss(x, table, items)), 0)


def _tiled_softmax(output: relax.Var, call: Any, cotangent: Any, builder: Any) -> list:
    """Backward: ``w = (softmax(s) - one_hot(y)) c`` in tiles, ``dx = w t``, ``dt = w' x``."""
    logarithms = emit(relax.TupleGetItem(output, 1))
    of_loss = emit(relax.TupleGetItem(emit(cotangent), 0))
    both = emit(_tiled_cotangent(*call.args, logarithms, of_loss))
    return [*(relax.TupleGetItem(both, n) for n in range(2)), None]


def _softmax_cross_entropy(output: relax.Var, call: Any, cotangent: Any, builder: Any) -> list:
    """Backward: each row of ``softmax(s) - one_hot(y)`` times its cotangent.

    A batch scored against its own rows has few scores: the product is then an ordinary operator,
    which TVM fuses with its readers.
    """
    weights = emit(relax.TupleGetItem(output, 1))
    of_loss = emit(relax.TupleGetItem(emit(cotangent), 0))
    if _length(weights.ty) is None:
        return [op.multiply(weights, emit(op.expand_dims(of_loss, 1))), None]
    return [_scale_rows(weights, of_loss), None]


RULES = {
    "relax.sparsetrain.bce_with_logits": _bce,
    "relax.nn.cross_entropy_with_logits": _cross_entropy,
    "relax.nn.nll_loss": _nll_loss,
    "relax.sparsetrain.softmax_loss": _softmax_cross_entropy,
    "relax.sparsetrain.tiled_softmax_loss": _tiled_softmax,
}
