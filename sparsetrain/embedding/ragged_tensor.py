# SPDX-License-Identifier: Apache-2.0
"""`RaggedTensor`: ids or vectors of the tokens of each row, without padding, in a model."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from tvm.relax import op
from tvm.relax.frontend import nn
from tvm.relax.op.grad import no_grad

from sparsetrain.ops import ragged

_MULTIPLIER = (
    0x9E3779B1  # 2^32 / golden ratio: spreads row numbers mod 2^32, with gaps for their tokens
)


@dataclass(frozen=True)
class RaggedTensor:
    """Tokens of B rows, in the order of the rows.

    Use `map` for a layer that treats tokens independently, such as `nn.Linear`; attention and sums
    over a row use the ends of rows.

    Attributes
    ----------
    values : nn.Tensor (N,) or (N, D)
        Ids or vectors of the tokens.
    ends : nn.Tensor (B,) int64
        Where each row ends in `values`; the last is N.
    weights : nn.Tensor (N,) or None
        Factors given with the ids.
    """

    values: nn.Tensor
    ends: nn.Tensor
    weights: nn.Tensor | None = None

    def map(self, layer: Callable[[nn.Tensor], nn.Tensor]) -> RaggedTensor:
        """Apply a layer to all tokens: (N, ...) -> (N, ...)."""
        before = _mapped.set(self)
        try:
            return self.replace(layer(self.values))
        finally:
            _mapped.reset(before)

    def replace(self, values: nn.Tensor) -> RaggedTensor:
        """Return the same rows with new tokens."""
        return RaggedTensor(values, self.ends, self.weights)

    def sum(self) -> nn.Tensor:
        """Return the sum of each row's vectors: (B, D); 0 for an empty row."""
        return self._by(ragged.ragged_sum)

    def max(self) -> nn.Tensor:
        """Return the maximum of each row's vectors per column: (B, D); 0 for an empty row."""
        return self._by(ragged.ragged_max)

    def last(self) -> nn.Tensor:
        """Return each row's last vector: (B, D); 0 for an empty row."""
        return self._by(ragged.ragged_last)

    def mean(self) -> nn.Tensor:
        """Return the mean of each row's vectors: (B, D); 0 for an empty row."""
        rows = self.ends.shape[0], 1
        return self.sum() / nn.op.maximum(self.lengths(), nn.op.ones(rows, "float32"))

    def lengths(self) -> nn.Tensor:
        """Return the number of tokens of each row: (B, 1) float32."""
        ones = nn.op.ones((self.values.shape[0], 1), "float32")
        return nn.wrap_nested(ragged.ragged_sum(ones._expr, self.ends._expr), "lengths")

    def positions(self) -> nn.Tensor:
        """Return the place of each token within its row, from 0: (N,) int64."""
        found = ragged.ragged_positions(self._columns()._expr, self.ends._expr)
        return nn.wrap_nested(found, "positions")

    def distances(self) -> nn.Tensor:
        """Return how many tokens of its row come after each token: (N,) int64."""
        found = ragged.ragged_distances(self._columns()._expr, self.ends._expr)
        return nn.wrap_nested(found, "distances")

    def numbers(self, first_row: nn.Tensor) -> nn.Tensor:
        """Number the tokens by row and place: (N,) int64; row 0 has number `first_row` (1,).

        The numbers are distinct mod 2^32 if rows times tokens per row are below a billion.
        """
        rows = nn.wrap_nested(op.arange(0, self.ends.shape[0], 1, "int64"), "rows") + first_row
        numbers = nn.op.reshape(rows * _MULTIPLIER, (self.ends.shape[0], 1))
        each = nn.op.reshape(self.expand(numbers), (self.values.shape[0],))
        return each + self.positions()

    def expand(self, rows: nn.Tensor) -> nn.Tensor:
        """Repeat each row's vector for its tokens: (B, D) -> (N, D)."""
        found = ragged.ragged_expand(rows._expr, self.ends._expr, self._columns()._expr)
        return nn.wrap_nested(found, "expanded")

    def take(self, places: RaggedTensor) -> RaggedTensor:
        """Return the vectors (M, D) at M places within their rows."""
        arrays = (self.values, self.ends, places.values, places.ends)
        taken = ragged.ragged_take(*(array._expr for array in arrays))
        return places.replace(nn.wrap_nested(taken, "taken"))

    def _columns(self) -> nn.Tensor:
        """Return the tokens as a matrix (N, D), from which operators take the length N."""
        one = len(self.values.shape) == 1
        return nn.op.reshape(self.values, (self.values.shape[0], 1)) if one else self.values

    def softmax(self) -> RaggedTensor:
        """Return the softmax over the tokens of each row, per column: (N, H)."""
        top = nn.wrap_nested(no_grad(self.max()._expr), "top")
        powers = self.map(lambda scores: nn.op.exp(scores - self.expand(top)))
        return powers.map(lambda each: each / powers.expand(powers.sum()))

    def _by(self, operator: Callable) -> nn.Tensor:
        return nn.wrap_nested(operator(self.values._expr, self.ends._expr), "rows")


_mapped: ContextVar[RaggedTensor | None] = ContextVar("tokens that are mapped", default=None)


def mapped_tokens() -> RaggedTensor | None:
    """Return the tokens to which a layer is being applied; None outside of `RaggedTensor.map`."""
    return _mapped.get()
