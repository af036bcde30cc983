# SPDX-License-Identifier: Apache-2.0
"""Losses and predictions of a model by the kind of its labels.

A model has a logit for each label, and of one of C classes C. That of a binary label is its
log-odds, and its loss the cross-entropy; that of a real label is the prediction itself, and its
loss the squared error; those of classes are log-probabilities up to a constant, and the loss is the
softmax cross-entropy. Among several labels, NaN stands for one that a row lacks, whose loss is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from tvm import relax
from tvm.relax import op
from tvm.relax.frontend import nn

from sparsetrain.data.values.labels import LabelKind, logit_columns
from sparsetrain.errors import ConfigError
from sparsetrain.models.losses import (
    binary_cross_entropy,
    softmax_cross_entropy,
    squared_error,
)
from sparsetrain.system.argument_checks import require_non_negative


def _of_classes(logits: nn.Tensor, labels: nn.Tensor) -> nn.Tensor:
    rows = logits.shape[0]
    classes = nn.op.reshape(nn.op.astype(labels, "int64"), (rows,))
    return nn.op.reshape(softmax_cross_entropy(logits, classes), (rows, 1))


# Kind -> (B, C) logits and (B, 1) labels to (B, 1) losses; of a number of classes `_of_classes`.
_LOSSES: dict[LabelKind, Callable[[nn.Tensor, nn.Tensor], nn.Tensor]] = {
    "binary": binary_cross_entropy,
    "real": squared_error,
}


def loss_of_labels(
    logits: nn.Tensor,
    labels: nn.Tensor,
    kinds: Mapping[str, LabelKind],
    row_weights: nn.Tensor | None = None,
    label_weights: Mapping[str, float] | None = None,
) -> nn.Tensor:
    """(B, S) logits and labels -> the weighted sum of the mean losses of all labels, ().

    A row's losses are multiplied by its weight; a mean is over all rows.
    """
    each = losses(logits, nn.op.reshape(labels, (logits.shape[0], len(kinds))), kinds)  # (B, T)
    if label_weights:
        check_label_weights(label_weights, kinds)
        factors = np.array([[label_weights.get(name, 1.0) for name in kinds]], each.dtype)
        each = each * nn.wrap_nested(relax.const(factors), "label_weights")
    if row_weights is not None:
        each = nn.op.multiply(each, nn.op.reshape(row_weights, (logits.shape[0], 1)))
    if len(kinds) > 1:
        each = nn.op.sum(each, axis=1)
    return nn.op.wrap_nested(op.mean(each._expr), "loss")


def check_label_weights(weights: Mapping[str, float], kinds: Mapping[str, LabelKind]) -> None:
    """Refuse a weight of no label, and one that is negative or not finite."""
    for name, weight in weights.items():
        if name not in kinds:
            raise ConfigError(f"label_weights: there is no label {name!r}, but {', '.join(kinds)}")
        require_non_negative(f"label_weights.{name}", weight)


def losses(logits: nn.Tensor, labels: nn.Tensor, kinds: Mapping[str, LabelKind]) -> nn.Tensor:
    """(B, S) logits, (B, T) labels -> (B, T) losses, 0 where a label of several is missing."""
    if len(kinds) == 1:
        (kind,) = kinds.values()
        return _LOSSES.get(kind, _of_classes)(logits, labels)
    # An operator's arguments must be bound before their types are known.
    missing = nn.op.wrap_nested(op.isnan(labels._expr), "missing")._expr
    zeros = nn.op.zeros(labels.shape, labels.dtype)._expr
    known = nn.op.wrap_nested(op.where(missing, zeros, labels._expr), "known")
    each = [
        _LOSSES.get(kind, _of_classes)(_columns(logits, own), _columns(known, slice(i, i + 1)))
        for i, (kind, own) in enumerate(
            zip(kinds.values(), logit_columns(kinds).values(), strict=True)
        )
    ]
    joined = nn.op.concat(each, dim=1)
    return nn.op.wrap_nested(op.where(missing, zeros, joined._expr), "losses")


def _columns(tensor: nn.Tensor, which: slice) -> nn.Tensor:
    sliced = op.strided_slice(tensor._expr, axes=[1], begin=[which.start], end=[which.stop])
    return nn.op.wrap_nested(sliced, "columns")


def predictions(logits: np.ndarray, kinds: Mapping[str, LabelKind]) -> np.ndarray:
    """(B, S) logits -> probabilities of binary labels and of classes, values of real ones.

    (B, S), or (B,) where S is 1; float32, by way of float64.
    """
    found = [
        _OF_LOGITS.get(kinds[name], _softmax)(logits[:, own])
        for name, own in logit_columns(kinds).items()
    ]
    joined = found[0] if len(found) == 1 else np.concatenate(found, axis=1)
    return joined[:, 0] if joined.shape[1] == 1 else joined


def prediction_names(kinds: Mapping[str, LabelKind]) -> list[str]:
    """Return names of the columns of predictions: those of the labels, and ``NAME_CLASS``."""
    if len(kinds) < 2:
        kind: LabelKind = next(iter(kinds.values()), "real")
        kinds = {"prediction" if kind == "real" else "probability": kind}
    return [
        name if own.stop - own.start == 1 else f"{name}_{number}"
        for name, own in logit_columns(kinds).items()
        for number in range(own.stop - own.start)
    ]


def _probabilities(logits: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # exp of a large number is infinite, its inverse 0
        return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)


def _softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True, initial=-np.inf))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


_OF_LOGITS: dict[LabelKind, Callable[[np.ndarray], np.ndarray]] = {
    "binary": _probabilities,
    "real": lambda logits: logits,
}
