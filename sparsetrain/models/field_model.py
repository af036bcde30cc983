# SPDX-License-Identifier: Apache-2.0
"""Base classes of models over fields: each id and each dense feature of a row has a vector.

The vector of a dense feature is its value times a learnt vector, as ``x_i v_i`` in factorization
machines (Rendle 2010). First-order weights are the first columns of the tables, one for each label,
so they need no separate lookup. Initial vectors and weights are normal with a deviation of 0.01, as
in libFM: with larger values the products of all pairs dominate, and training recovers for few rows
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm.relax.frontend import nn

from sparsetrain.labels import Labels
from sparsetrain.models.arguments import check_options, options_of
from sparsetrain.models.by_feature import Dim
from sparsetrain.models.click_model import ClickModel
from sparsetrain.models.fields import flat
from sparsetrain.models.initialize import Draw, normal
from sparsetrain.models.layers import MLP
from sparsetrain.models.model import Model
from sparsetrain.models.numbers import columns

DEVIATION = 0.01
_OF_ALL = ("dim", *ClickModel._options_of_all)


class FieldModel(ClickModel):
    """Click model with a `forward` that begins with a call of `fields`.

    Constructor arguments are checked against the types in the subclass's signature.

    Parameters
    ----------
    rows, dim, num_dense
        As in `ClickModel`; there are M = num_dense + F fields of `dim` numbers. A dense feature
        with an embedding of its own counts as one field.
    **rest
        As in `ClickModel`.

    Attributes
    ----------
    has_weights : bool
        Whether each value has a first-order weight besides its vector.
    """

    has_weights = False
    deviation = DEVIATION

    def __init__(
        self,
        rows: Sequence[int],
        dim: Dim,
        num_dense: int,
        /,
        **rest: Any,
    ) -> None:
        cls = type(self)
        declared, given = options_of(cls), Model.config(self)
        own = {n: given.get(n, declared[n].default) for n in declared if n not in _OF_ALL}
        self._options = check_options(cls, own)
        labels = rest.get("labels")
        self.num_labels = Labels(labels).num_logits if labels else 1
        self.num_weights = self.num_labels * self.has_weights
        super().__init__(rows, dim, num_dense, **rest)
        self.dim = self.vector_width - self.num_weights
        embedded = self.numbers.inputs if self.numbers else 0
        self.num_dense = int(self._config["num_dense"]) - embedded
        self.num_fields = self.num_dense + self.num_embedded
        if self.num_dense:
            self.dense_fields = nn.Parameter((self.num_dense, self.vector_width))
            self.dense_fields.attrs["deviation"] = DEVIATION
        if self.has_weights:
            self.bias = nn.Parameter((self.num_labels,))
            self.bias.attrs["initial"] = 0.0

    def config(self) -> dict[str, Any]:
        """The constructor's arguments, as plain values."""
        return {**super().config(), **self._options}

    def draw_of_table(self, table: str, shape: Sequence[int]) -> tuple[Draw, str]:
        """As in `Model`."""
        return normal(DEVIATION), super().draw_of_table(table, shape)[1]

    def fields(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """Join (B, num_dense) and (B, N + F, D) to (B, M, D), or concatenated (B, W) to (B, W')."""
        if not self.num_dense:
            return embedded
        if self.numbers:
            dense = columns(dense, self.numbers.inputs, dense.shape[1])
        values = nn.op.reshape(dense, (dense.shape[0], self.num_dense, 1))
        own = values * self.dense_fields
        return nn.op.concat([own if len(embedded.shape) == 3 else flat(own), embedded], dim=1)

    def first_order(self, dense: nn.Tensor, embedded: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """Return bias plus sum of each row's weights, (B, T), and its vectors, (B, M, dim)."""
        fields = self.fields(dense, embedded)
        if len(fields.shape) == 2:
            weights, vectors = self._apart(fields)
        else:
            weights, vectors = nn.op.split(fields, [self.num_labels], axis=2)
        return nn.op.sum(weights, axis=1) + self.bias, vectors

    def _apart(self, fields: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """Split fields (B, W') of several widths into weights (B, M, T) and joined vectors."""
        others = self.num_fields - len(self.widths.features)
        runs = [(others, self.widths.others)] * (others > 0) + self.widths.runs
        sizes = [count * (self.num_weights + width) for count, width in runs]
        pieces = nn.op.split(fields, np.cumsum(sizes)[:-1].tolist(), axis=1)
        weights, vectors = [], []
        for (count, width), piece in zip(runs, pieces, strict=True):
            own = nn.op.reshape(piece, (fields.shape[0], count, self.num_weights + width))
            first, rest = nn.op.split(own, [self.num_weights], axis=2)
            weights.append(first)
            vectors.append(flat(rest))
        return nn.op.concat(weights, dim=1), nn.op.concat(vectors, dim=1)

    @property
    def vectors_width(self) -> int:
        """Total width of a row's vectors, without first-order weights."""
        dense = self.num_dense * self.vector_width
        return dense + self.embedded_width - self.num_fields * self.num_weights

    def flat(self, vectors: nn.Tensor) -> nn.Tensor:
        """(B, M, dim) -> (B, M dim); concatenated vectors are unchanged."""
        return flat(vectors) if len(vectors.shape) == 3 else vectors


class DeepModel(FieldModel):
    """Model over fields with an MLP, ``self.mlp``, from ``[v_1, ..., v_M]`` to the logits.

    Parameters
    ----------
    rows, num_dense
        As in `ClickModel`.
    dim : int, or mapping from str to int
        Width of the vectors v, or widths by feature, as in `ClickModel`.
    hidden : sequence of int
        Hidden widths of the MLP.
    dropout : float
        Rate of the MLP's dropout.
    batch_norm : bool
        Whether the MLP has batch norm.
    **rest
        As in `ClickModel`.
    """

    def __init__(
        self,
        rows: Sequence[int],
        dim: Dim = 16,
        hidden: Sequence[int] = (64, 64),
        num_dense: int = 0,
        dropout: float = 0.0,
        batch_norm: bool = False,
        **rest: Any,
    ) -> None:
        super().__init__(rows, dim, num_dense, **rest)
        widths = [self.vectors_width, *self._options["hidden"], self.num_labels]
        self.mlp = MLP(widths, last_relu=False, dropout=dropout, batch_norm=batch_norm)
