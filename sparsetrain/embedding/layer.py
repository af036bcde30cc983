# SPDX-License-Identifier: Apache-2.0
"""`Embedding`: one table as a layer, for single ids, sequences and pooled bags of ids."""

from __future__ import annotations

from typing import Any, Literal

from tvm.relax import op
from tvm.relax.frontend import nn

from sparsetrain.embedding.lookup_operators import embedding_bag, lookup
from sparsetrain.embedding.ragged_tensor import RaggedTensor
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.system.argument_checks import require_int

PooledBy = Literal["sum", "mean", "sqrtn", "max"]


class Embedding(nn.Module):
    """A table (V, D) for lookups; its gradient is row-sparse.

    Parameters
    ----------
    rows, width : int
        V and D.
    dtype : str
        Dtype of the stored table; results are float32.
    deviation : float, optional
        Standard deviation of initial weights in a `Model`; by default weights are uniform within
        ``sqrt(1 / V)``, as in the reference DLRM.

    Attributes
    ----------
    weight : nn.Parameter (V, D)
    """

    def __init__(
        self, rows: int, width: int, *, dtype: str = "float32", deviation: float | None = None
    ) -> None:
        name = type(self).__name__
        self.rows = require_int(f"{name}: rows", rows)
        self.width = require_int(f"{name}: width", width)
        self.deviation = deviation
        self.weight = nn.Parameter((self.rows, format_of(dtype).extent(self.width)), dtype)

    def forward(self, ids: Any) -> Any:
        """Return rows (..., D) for ids of any shape; ragged ids give a ragged tensor of rows."""
        return ids.map(self.lookup) if isinstance(ids, RaggedTensor) else self.lookup(ids)

    def lookup(self, ids: nn.Tensor) -> nn.Tensor:
        """Return rows (..., D) for ids of any shape."""
        return nn.op.wrap_nested(lookup(self.weight._expr, ids._expr), "embedding")

    def pool(self, ids: RaggedTensor, by: PooledBy = "sum") -> nn.Tensor:
        """Pool the rows of each bag of ids into one vector: (B, D); 0 for an empty bag.

        Parameters
        ----------
        ids : RaggedTensor
            The bags. If they have `weights`, rows are multiplied by these; "mean" then divides by
            the sum of the weights, and "sqrtn" by the square root of the sum of their squares.
        by : {"sum", "mean", "sqrtn", "max"}
            "sqrtn" is the sum divided by the square root of the number of ids.

        Raises
        ------
        ConfigError
            For an unknown pooling, or for "max" with weights.
        """
        if ids.weights is not None and by == "max":
            raise ConfigError("Embedding.pool: by='max' takes no weights: use 'sum' or 'mean'")
        if by not in ("sum", "mean", "sqrtn", "max"):
            raise ConfigError(
                f"Embedding.pool: by must be 'sum', 'mean', 'sqrtn' or 'max', not {by!r}"
            )
        if by == "max":
            return self.forward(ids).max()
        if by == "mean" and ids.weights is None:
            return self._bag(ids, "mean")
        total = self._bag(ids, "sum")
        if by == "sum":
            return total
        if ids.weights is None:
            divisor = ids.lengths()
        else:
            column = nn.op.reshape(ids.weights, (ids.weights.shape[0], 1))
            divisor = ids.replace(column if by == "mean" else column * column).sum()  # (B, 1)
        rows = ids.ends.shape[0], 1
        zeros = nn.op.zeros(rows, "float32")
        nothing = nn.wrap_nested(op.equal(divisor._expr, zeros._expr), "nothing")
        divisor = nn.op.where(nothing, nn.op.ones(rows, "float32"), divisor)
        return total / (divisor if by == "mean" else nn.op.sqrt(divisor))

    def _bag(self, ids: RaggedTensor, mode: str) -> nn.Tensor:
        offsets = nn.op.concat([nn.op.zeros((1,), "int64"), ids.ends], dim=0)
        weights = None if ids.weights is None else ids.weights._expr
        pooled = embedding_bag(
            self.weight._expr, ids.values._expr, offsets._expr, weights, mode=mode
        )
        bags = nn.op.wrap_nested(pooled, "embedding")
        return nn.op.reshape(bags, (ids.ends.shape[0], self.width))
