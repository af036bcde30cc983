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


class TrainingMode:
    """One export of a loss.

    Attributes
    ----------
    key, first_row : Expr, optional
        Inputs by which dropout draws.
    numbers : iterator of int
        A number for each use of dropout.
    updates : dict
        Buffer, a parameter -> its value after the step.
    """

    def __init__(self, key: nn.Tensor | None, first_row: nn.Tensor | None) -> None:
        self.key: relax.Expr | None = None if key is None else key._expr
        self.first_row: relax.Expr | None = None if first_row is None else first_row._expr
        self.numbers = count()
        self.updates: dict[nn.Parameter, nn.Tensor] = {}


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
