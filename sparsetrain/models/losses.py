# SPDX-License-Identifier: Apache-2.0
"""Losses for `Model.loss`: of labels, pairs, classes, and softmax over sampled or all items.

Each returns a number for each row or token; `mean` reduces them to the loss.
"""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op
from tvm.relax.frontend import nn

from sparsetrain.ad import bce_with_logits
from sparsetrain.ad import cross_entropy_ as _cross_entropy_
from sparsetrain.ad import linear_cross_entropy as _linear_cross_entropy
from sparsetrain.ad import tiled_cross_entropy as _tiled_cross_entropy
from sparsetrain.errors import ConfigError


def mean(each: nn.Tensor, weights: nn.Tensor | None = None) -> nn.Tensor:
    """Return the sum of all numbers times their weights, divided by their count, a () tensor.

    The result is 0 if there are no numbers, as in a batch of empty histories.
    """
    weighed = each if weights is None else each * weights
    count = _emit(op.sum(nn.op.ones(weighed.shape, weighed.dtype)._expr))
    count = _emit(op.maximum(count, _number(1.0, weighed)))
    return nn.wrap_nested(op.divide(_emit(op.sum(weighed._expr)), count), "loss")


def binary_cross_entropy(logits: nn.Tensor, labels: nn.Tensor | float) -> nn.Tensor:
    """``log(1 + exp(z)) - z y`` for logits z and labels y in [0, 1], or one label for all."""
    if not isinstance(labels, nn.Tensor):
        label = _number(labels, logits)
        labels = nn.wrap_nested(op.full(logits.shape, label, logits.dtype), "labels")
    return nn.wrap_nested(bce_with_logits(logits._expr, labels._expr), "losses")


def squared_error(predictions: nn.Tensor, labels: nn.Tensor) -> nn.Tensor:
    """``(z - y)**2``."""
    error = predictions - labels
    return error * error


def bpr(positive: nn.Tensor, negative: nn.Tensor) -> nn.Tensor:
    """``-log sigmoid(positive - negative)`` (Rendle et al. 2009, arXiv:1205.2618)."""
    return binary_cross_entropy(positive - negative, 1.0)


def softmax_cross_entropy(logits: nn.Tensor, classes: nn.Tensor) -> nn.Tensor:
    """``log sum_c exp(z_c) - z_y``: (N, C) logits and (N,) integers in [0, C) -> (N,)."""
    logarithms = op.nn.log_softmax(logits._expr, axis=1)
    chosen = _at(nn.wrap_nested(logarithms, "logarithms"), classes)
    return nn.op.negative(chosen)


def in_batch_softmax(
    queries: nn.Tensor,
    items: nn.Tensor,
    log_q: nn.Tensor | None = None,
    ids: nn.Tensor | None = None,
    items_from: int = 0,
) -> nn.Tensor:
    """Softmax cross-entropy of each query's item among the items of the batch: (B,).

    Parameters
    ----------
    queries, items : (B, D)
        Row i of `items` is the item of query i.
    log_q : (B,), optional
        Logarithm of the probability that each item is in a batch, subtracted from its scores (Yi et
        al. 2019, https://doi.org/10.1145/3298689.3346996).
    ids : (B,) integers, optional
        Ids of the items; equal items of two rows are not each other's negatives.
    items_from : int
        Smallest id of a negative; smaller ids stand for missing and rare values.
    """
    scores = nn.op.matmul(queries, nn.op.permute_dims(items, [1, 0]))  # (B, B)
    if log_q is not None:
        scores = scores - nn.op.reshape(log_q, (1, log_q.shape[0]))
    rows = _arange(queries.shape[0])
    if ids is not None:
        same = op.equal(op.expand_dims(ids._expr, 1), op.expand_dims(ids._expr, 0))
        if items_from:
            reserved = op.less(ids._expr, relax.const(items_from, ids.dtype))
            same = op.logical_or(_emit(same), _emit(op.expand_dims(_emit(reserved), 0)))
        itself = op.equal(op.expand_dims(rows._expr, 1), op.expand_dims(rows._expr, 0))
        repeated = nn.wrap_nested(op.logical_xor(_emit(same), _emit(itself)), "repeated")
        scores = nn.wrap_nested(
            op.where(repeated._expr, _number(-1e9, scores), scores._expr), "scores"
        )
    return nn.wrap_nested(_cross_entropy_(scores._expr, rows._expr), "losses")


def sampled_softmax(
    positive: nn.Tensor,
    negatives: nn.Tensor,
    log_q: nn.Tensor | None = None,
    negative_log_q: nn.Tensor | None = None,
) -> nn.Tensor:
    """Softmax cross-entropy of a score among the scores of sampled negatives: (N,).

    Parameters
    ----------
    positive : (N,)
    negatives : (N, K)
    log_q, negative_log_q : of the same shapes, optional
        Logarithms of the sampling probabilities of both, subtracted from the scores (Bengio and
        Senecal 2008, https://doi.org/10.1109/TNN.2007.912312).
    """
    if (log_q is None) != (negative_log_q is None):
        raise ConfigError("sampled_softmax: give both log_q and negative_log_q, or neither")
    if log_q is not None and negative_log_q is not None:
        positive, negatives = positive - log_q, negatives - negative_log_q
    column = nn.op.reshape(positive, (positive.shape[0], 1))
    scores = nn.op.concat([column, negatives], dim=1)
    total = op.nn.log_softmax(scores._expr, axis=1)
    first = op.strided_slice(_emit(total), axes=[1], begin=[0], end=[1])
    return nn.op.negative(nn.op.reshape(nn.wrap_nested(first, "first"), positive.shape))


def cosine_contrastive(
    positive: nn.Tensor, negatives: nn.Tensor, margin: float = 0.4, weight: float = 150.0
) -> nn.Tensor:
    """``1 - s + w mean_k max(0, s_k - m)``, the loss of SimpleX: (N,).

    Mao et al. 2021, https://arxiv.org/abs/2109.12613.

    Parameters
    ----------
    positive : (N,)
        Cosines s of the items that were chosen.
    negatives : (N, K)
        Cosines s_k of negatives; below the margin m they do not contribute.
    margin, weight : float
        m and w.
    """
    over = nn.op.relu(negatives - _constant(margin, negatives))
    each = nn.op.sum(over, axis=1) * _constant(weight / int(negatives.shape[1]), negatives)
    return _constant(1.0, positive) - positive + each


def warp(positive: nn.Tensor, negatives: nn.Tensor, items: int) -> nn.Tensor:
    """``L((items - 1) // n) max(0, 1 - s + s_n)``, for the first n that makes it positive: (N,).

    ``L(r) = 1 + 1/2 + ... + 1/r`` weights the rank r estimated from n draws (Weston et al. 2011,
    WSABIE, https://www.ijcai.org/Proceedings/11/Papers/460.pdf). If there is no such n, the loss is
    0.

    Parameters
    ----------
    positive : (N,)
    negatives : (N, K)
        Scores of negatives in the order in which they are tried.
    items : int
        Number of all items.
    """
    tries, most = int(negatives.shape[1]), max(items - 1, 1)
    sums = np.cumsum(1 / np.arange(1, most + 1))
    ranks = np.maximum(most // np.arange(1, tries + 1), 1)
    column = nn.op.reshape(positive, (positive.shape[0], 1))
    hinge = nn.op.relu(negatives - column + _constant(1.0, positive))
    above = _emit(op.greater(hinge._expr, _number(0.0, hinge)))
    earlier = relax.const(np.triu(np.ones((tries, tries)), 1), hinge.dtype)
    count = _emit(op.matmul(_emit(op.astype(above, hinge.dtype)), earlier))
    is_first = _emit(op.equal(count, _number(0.0, hinge)))
    by_rank = relax.const(sums[ranks - 1], hinge.dtype)
    weights = nn.wrap_nested(op.where(is_first, by_rank, _number(0.0, hinge)), "weights")
    return nn.op.sum(hinge * weights, axis=1)


def squares_of_rows(*vectors: nn.Tensor) -> nn.Tensor:
    """Half the sum of squares of tensors, divided by the number of rows of the first: a () tensor.

    Multiplied by a factor, it is the decay of the rows that a batch reads, as in LightGCN and
    RecBole (He et al. 2020, https://arxiv.org/abs/2002.02126, equation 15).
    """
    total = None
    for each in vectors:
        squares = _emit(op.sum((each * each)._expr))
        total = squares if total is None else _emit(op.add(total, squares))
    rows = _emit(op.sum(op.ones((vectors[0].shape[0],), vectors[0].dtype)))
    rows = _emit(op.multiply(rows, _number(2.0, vectors[0])))
    return nn.wrap_nested(op.divide(total, rows), "squares")


def full_softmax(hidden: nn.Tensor, table: nn.Tensor, items: nn.Tensor) -> nn.Tensor:
    """Softmax cross-entropy of an item among all rows of a table: (N,).

    Parameters
    ----------
    hidden : (N, D)
    table : (V, D)
        Such as ``self.item.weight``, which the model's `densify` must then name.
    items : (N,) integers in [0, V)

    Notes
    -----
    One array of (N, V) numbers is built: the scores become the weights that the reverse pass needs.
    `tiled_softmax` builds none.
    """
    found = _linear_cross_entropy(hidden._expr, table._expr, items._expr)
    return nn.wrap_nested(found, "losses")


def tiled_softmax(hidden: nn.Tensor, table: nn.Tensor, items: nn.Tensor) -> nn.Tensor:
    """Compute `full_softmax` in tiles of the table's rows: for a million items, on a CPU.

    The reverse pass recomputes the scores, which is a third more work. Besides the table's dense
    gradient, it holds a few rows of width D for each position.
    """
    found = _tiled_cross_entropy(hidden._expr, table._expr, items._expr)
    return nn.wrap_nested(found, "losses")


def _at(tensor: nn.Tensor, classes: nn.Tensor) -> nn.Tensor:
    """(N, C) and (N,) -> each row's number at its class, (N,)."""
    rows = _arange(tensor.shape[0])
    wide = classes if str(classes.dtype) == "int64" else nn.op.astype(classes, "int64")
    places = op.stack([rows._expr, wide._expr], axis=1)
    return nn.wrap_nested(op.gather_nd(tensor._expr, _emit(places)), "chosen")


def _arange(length: object) -> nn.Tensor:
    return nn.wrap_nested(op.arange(0, length, 1, "int64"), "rows")


def _constant(value: float, like: nn.Tensor) -> nn.Tensor:
    return nn.wrap_nested(_number(value, like), "number")


def _number(value: float, like: nn.Tensor) -> relax.Expr:
    return relax.const(value, like.dtype)


def _emit(expr: relax.Expr) -> relax.Expr:
    return nn.wrap_nested(expr, "value")._expr
