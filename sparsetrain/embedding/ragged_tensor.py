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

_MULTIPLIER = 0x9E3779B1  # 2^32 / golden ratio: multiples mod 2^32 are spread out, tokens between


@dataclass(frozen=True)
class RaggedTensor:
    """Tokens of B rows, in the order of the rows.

    A layer that treats tokens alike, such as `nn.Linear`, is applied by `map`; attention and sums
    over a row know where rows end.

    Attributes
    ----------
    values : nn.Tensor (N,) or (N, D)
        Ids or vectors of the tokens.
    ends : nn.Tensor (B,) int64
        Where each row ends in `values`; the last is N.
    weights : nn.Tensor (N,) or None
        Factors that came with the ids.
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
        """The same rows with new tokens."""
        return RaggedTensor(values, self.ends, self.weights)

    def sum(self) -> nn.Tensor:
        """Sum of each row's vectors: (B, D); 0 for a row without any."""
        return self._by(ragged.ragged_sum)

    def max(self) -> nn.Tensor:
        """Largest of each row's vectors, column by column: (B, D); 0 for a row without any."""
        return self._by(ragged.ragged_max)

    def last(self) -> nn.Tensor:
        """Each row's last vector: (B, D); 0 for a row without any."""
        return self._by(ragged.ragged_last)

    def mean(self) -> nn.Tensor:
        """Mean of each row's vectors: (B, D); 0 for a row without any."""
        rows = self.ends.shape[0], 1
        return self.sum() / nn.op.maximum(self.lengths(), nn.op.ones(rows, "float32"))

    def lengths(self) -> nn.Tensor:
        """Number of tokens of each row: (B, 1) float32."""
        ones = nn.op.ones((self.values.shape[0], 1), "float32")
        return nn.wrap_nested(ragged.ragged_sum(ones._expr, self.ends._expr), "lengths")

    def positions(self) -> nn.Tensor:
        """Number of each token within its row, from 0: (N,) int64."""
        found = ragged.ragged_positions(self._columns()._expr, self.ends._expr)
        return nn.wrap_nested(found, "positions")

    def distances(self) -> nn.Tensor:
        """Number of tokens behind each in its row, 0 for the last: (N,) int64."""
        found = ragged.ragged_distances(self._columns()._expr, self.ends._expr)
        return nn.wrap_nested(found, "distances")

    def numbers(self, first_row: nn.Tensor) -> nn.Tensor:
        """A number for each token by its row and place, (N,) int64; `first_row` (1,) numbers row 0.

        They are distinct mod 2^32, unless rows times tokens per row reach a billion.
        """
        rows = nn.wrap_nested(op.arange(0, self.ends.shape[0], 1, "int64"), "rows") + first_row
        numbers = nn.op.reshape(rows * _MULTIPLIER, (self.ends.shape[0], 1))
        each = nn.op.reshape(self.expand(numbers), (self.values.shape[0],))
        return each + self.positions()

    def expand(self, rows: nn.Tensor) -> nn.Tensor:
        """The vector of its row for each token: (B, D) -> (N, D)."""
        found = ragged.ragged_expand(rows._expr, self.ends._expr, self._columns()._expr)
        return nn.wrap_nested(found, "expanded")

    def take(self, places: RaggedTensor) -> RaggedTensor:
        """The vectors (M, D) at M places within their rows."""
        arrays = (self.values, self.ends, places.values, places.ends)
        taken = ragged.ragged_take(*(array._expr for array in arrays))
        return places.replace(nn.wrap_nested(taken, "taken"))

    def _columns(self) -> nn.Tensor:
        """The tokens as (N, D); operators read the length from it."""
        one = len(self.values.shape) == 1
        return nn.op.reshape(self.values, (self.values.shape[0], 1)) if one else self.values

    def softmax(self) -> RaggedTensor:
        """Softmax over the tokens of each row, column by column: (N, H)."""
        top = nn.wrap_nested(no_grad(self.max()._expr), "top")
        powers = self.map(lambda scores: nn.op.exp(scores - self.expand(top)))
        return powers.map(lambda each: each / powers.expand(powers.sum()))

    def _by(self, operator: Callable) -> nn.Tensor:
        return nn.wrap_nested(operator(self.values._expr, self.ends._expr), "rows")


_mapped: ContextVar[RaggedTensor | None] = ContextVar("tokens that are mapped", default=None)


def mapped_tokens() -> RaggedTensor | None:
    """Return the tokens that a layer is applied to, None outside of `RaggedTensor.map`."""
    return _mapped.get()
