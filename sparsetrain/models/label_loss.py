# SPDX-License-Identifier: Apache-2.0
"""The loss of all labels of a model, in TVM's operators.

A model has one logit per label, or several for some kinds of labels. If a model has several labels,
NaN marks a label that a row lacks, and its loss is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op
from tvm.relax.frontend import nn

from sparsetrain.labels import Labels
from sparsetrain.models.losses import binary_cross_entropy, softmax_cross_entropy
from sparsetrain.system.argument_checks import require_non_negative


def _constant(values: Any) -> nn.Tensor:
    return nn.wrap_nested(relax.const(np.asarray(values, np.float32)), "constant")


# The operators from which each kind of label builds its loss.
_OPERATORS = SimpleNamespace(
    **{name: found for name, found in vars(nn.op).items() if not name.startswith("_")},
    binary_cross_entropy=binary_cross_entropy,
    softmax_cross_entropy=softmax_cross_entropy,
    constant=_constant,
)


def loss_of_labels(
    logits: nn.Tensor,
    labels: nn.Tensor,
    kinds: Labels,
    row_weights: nn.Tensor | None = None,
    label_weights: Mapping[str, float] | None = None,
) -> nn.Tensor:
    """(B, S) logits and labels -> the weighted sum of the mean losses of all labels, ().

    A row's losses are multiplied by its weight; means are over all rows.
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


def check_label_weights(weights: Mapping[str, float], kinds: Labels) -> None:
    """Refuse a weight for an unknown label, and a weight that is negative or not finite."""
    kinds.check_weights(weights)
    for name, weight in weights.items():
        require_non_negative(f"label_weights.{name}", weight)


def losses(logits: nn.Tensor, labels: nn.Tensor, kinds: Labels) -> nn.Tensor:
    """(B, S) logits, (B, T) labels -> (B, T) losses; 0 for a missing label."""
    if kinds.only:
        return kinds.only.loss(_OPERATORS, logits, labels)
    # An operator's arguments must be bound before their types are known.
    missing = nn.op.wrap_nested(op.isnan(labels._expr), "missing")._expr
    zeros = nn.op.zeros(labels.shape, labels.dtype)._expr
    known = nn.op.wrap_nested(op.where(missing, zeros, labels._expr), "known")
    each = [
        label.loss(_OPERATORS, _columns(logits, own), _columns(known, slice(i, i + 1)))
        for i, (label, own) in enumerate(zip(kinds.values(), kinds.columns.values(), strict=True))
    ]
    joined = nn.op.concat(each, dim=1)
    return nn.op.wrap_nested(op.where(missing, zeros, joined._expr), "losses")


def _columns(tensor: nn.Tensor, which: slice) -> nn.Tensor:
    sliced = op.strided_slice(tensor._expr, axes=[1], begin=[which.start], end=[which.stop])
    return nn.op.wrap_nested(sliced, "columns")
