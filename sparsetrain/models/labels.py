# SPDX-License-Identifier: Apache-2.0
"""Losses and predictions of a model by the kind of its labels.

A model has a logit for each label. That of a binary label is its log-odds, and its loss the
cross-entropy; that of a real label is the prediction itself, and its loss the squared error. Among
several labels, NaN stands for one that a row lacks, whose loss is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from tvm import relax
from tvm.relax import op
from tvm.relax.frontend import nn

from sparsetrain.ad import bce_with_logits
from sparsetrain.data.values.labels import LabelKind


def _squared_error(logits: relax.Expr, labels: relax.Expr) -> relax.Expr:
    error = op.subtract(logits, labels)
    return op.multiply(error, error)


_LOSSES: dict[LabelKind, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "binary": bce_with_logits,
    "real": _squared_error,
}


def loss_of_labels(
    logits: nn.Tensor,
    labels: nn.Tensor,
    kinds: Mapping[str, LabelKind],
    row_weights: nn.Tensor | None = None,
) -> nn.Tensor:
    """(B, T) logits and their labels -> the sum of the mean losses of all labels, ().

    A row's losses are multiplied by its weight; a mean is over all rows.
    """
    each = losses(logits, nn.op.reshape(labels, logits.shape), kinds)  # (B, T)
    if row_weights is not None:
        each = nn.op.multiply(each, nn.op.reshape(row_weights, (logits.shape[0], 1)))
    if len(kinds) > 1:
        each = nn.op.sum(each, axis=1)
    return nn.op.wrap_nested(op.mean(each._expr), "loss")


def losses(logits: nn.Tensor, labels: nn.Tensor, kinds: Mapping[str, LabelKind]) -> nn.Tensor:
    """(B, T) logits and labels -> (B, T) losses, 0 where a label of several is missing."""
    if len(kinds) == 1:
        (kind,) = kinds.values()
        return nn.op.wrap_nested(_LOSSES[kind](logits._expr, labels._expr), "losses")
    # An operator's arguments must be bound before their types are known.
    missing = nn.op.wrap_nested(op.isnan(labels._expr), "missing")._expr
    zeros = nn.op.zeros(labels.shape, labels.dtype)._expr
    known = nn.op.wrap_nested(op.where(missing, zeros, labels._expr), "known")
    each = [
        nn.op.wrap_nested(_LOSSES[kind](_column(logits, i), _column(known, i)), "losses")
        for i, kind in enumerate(kinds.values())
    ]
    joined = nn.op.concat(each, dim=1)
    return nn.op.wrap_nested(op.where(missing, zeros, joined._expr), "losses")


def _column(tensor: nn.Tensor, index: int) -> relax.Expr:
    sliced = op.strided_slice(tensor._expr, axes=[1], begin=[index], end=[index + 1])
    return nn.op.wrap_nested(sliced, "column")._expr


def predictions(logits: np.ndarray, kinds: Mapping[str, LabelKind]) -> np.ndarray:
    """(B, T) logits -> probabilities of binary labels, values of real ones: (B,), (B, T) of T > 1.

    float32, by way of float64.
    """
    found = [
        _probabilities(column) if kind == "binary" else column
        for column, kind in zip(logits.T, kinds.values(), strict=True)
    ]
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def _probabilities(logits: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # exp of a large number is infinite, its inverse 0
        return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
