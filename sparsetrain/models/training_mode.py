# SPDX-License-Identifier: Apache-2.0
"""Training mode: what layers find while a loss is exported, and not while scores are.

Layers that act otherwise in training ask `training_mode()`: `Dropout` for its key, and `BatchNorm`
for a place to leave the new values of its running statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count

from tvm import relax
from tvm.relax.frontend import nn

from sparsetrain.embedding.ragged import mapped_tokens


class TrainingMode:
    """One export of a loss.

    Attributes
    ----------
    key, first_row : Tensor, optional
        Inputs by which dropout draws.
    layers : iterator of int
        A number for each use of dropout.
    updates : dict
        Buffer, a parameter -> its value after the step.
    """

    def __init__(self, key: nn.Tensor | None, first_row: nn.Tensor | None) -> None:
        self.key, self.first_row = key, first_row
        self.layers = count()
        self._tokens: dict[int, tuple[nn.Tensor, relax.Expr]] = {}
        self.updates: dict[nn.Parameter, nn.Tensor] = {}

    def rows(self) -> relax.Expr:
        """Number of the first row within the batch, (1,), or of each token that is mapped, (N,)."""
        assert self.first_row is not None
        tokens = mapped_tokens()
        if tokens is None:
            return self.first_row._expr
        if id(tokens.ends) not in self._tokens:  # the key keeps its object alive
            self._tokens[id(tokens.ends)] = tokens.ends, tokens.numbers(self.first_row)._expr
        return self._tokens[id(tokens.ends)][1]


_mode: ContextVar[TrainingMode | None] = ContextVar("training mode", default=None)


def training_mode() -> TrainingMode | None:
    """Return the mode that is on, None while scores are exported."""
    return _mode.get()


@contextmanager
def training(
    key: nn.Tensor | None = None, first_row: nn.Tensor | None = None
) -> Iterator[TrainingMode]:
    """Let layers act as in training."""
    mode = TrainingMode(key, first_row)
    token = _mode.set(mode)
    try:
        yield mode
    finally:
        _mode.reset(token)
