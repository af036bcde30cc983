# SPDX-License-Identifier: Apache-2.0
"""Layers: dropout and batch norm, which act differently in training, and an MLP with both.

`training_mode()` is set only while a loss is exported: `Dropout` gets its key from it, and
`BatchNorm` stores the new values of its running statistics in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count, zip_longest
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op
from tvm.relax.frontend import nn

from sparsetrain.ad import batch_norm, dropout
from sparsetrain.embedding.ragged_tensor import mapped_tokens
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats.noise import keys_of
from sparsetrain.system.argument_checks import is_number, require_int


def named_modules(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield a module, named `prefix`, and its submodules: ``("top.layers.0", Linear)``."""
    yield prefix, module
    for name, child in _children(module):
        yield from named_modules(child, f"{prefix}.{name}" if prefix else name)


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, nn.ModuleList):
        yield from ((str(number), child) for number, child in enumerate(module))
        return
    for name, value in vars(module).items():
        for key, item in _items(value):
            if isinstance(item, nn.Module):
                yield f"{name}{key}", item


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return ((f".{key}", item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ((f".{number}", item) for number, item in enumerate(value))
    return iter([("", value)])


class TrainingMode:
    """State shared by all layers during one export of a loss.

    Attributes
    ----------
    key, first_row : Tensor, optional
        Inputs of the dropout layers, see `dropout_inputs`.
    layers : iterator of int
        Yields a new number for each use of dropout.
    updates : dict
        Buffer (a parameter) -> its value after the step.
    """

    def __init__(self, key: nn.Tensor | None, first_row: nn.Tensor | None) -> None:
        self.key, self.first_row = key, first_row
        self.layers = count()
        self._tokens: dict[int, tuple[nn.Tensor, relax.Expr]] = {}
        self.updates: dict[nn.Parameter, nn.Tensor] = {}

    def rows(self) -> relax.Expr:
        """Return the number of the batch's first row, (1,), or numbers of mapped tokens, (N,)."""
        assert self.first_row is not None
        tokens = mapped_tokens()
        if tokens is None:
            return self.first_row._expr
        if id(tokens.ends) not in self._tokens:  # kept alive, so that its id stays its own
            self._tokens[id(tokens.ends)] = tokens.ends, tokens.numbers(self.first_row)._expr
        return self._tokens[id(tokens.ends)][1]


_mode: ContextVar[TrainingMode | None] = ContextVar("training mode", default=None)


def training_mode() -> TrainingMode | None:
    """Return the active mode; None while scores are exported."""
    return _mode.get()


@contextmanager
def training(
    key: nn.Tensor | None = None, first_row: nn.Tensor | None = None
) -> Iterator[TrainingMode]:
    """Put layers in training mode during the block."""
    mode = TrainingMode(key, first_row)
    token = _mode.set(mode)
    try:
        yield mode
    finally:
        _mode.reset(token)


KEY, FIRST_ROW = "dropout_key", "dropout_first_row"  # inputs of the exported loss


class Dropout(nn.Module):
    """Zero elements with probability `rate` while training, and divide the rest by ``1 - rate``.

    The mask is a function of the trainer's seed, the step and an element's position: it has the
    same bits for any number of threads, after resuming, and for any number of parts of a batch. The
    first axis is the batch's rows, or the tokens of a sequence in `RaggedTensor.map`.

    Parameters
    ----------
    rate : float
        At least 0 and below 1; with 0 no element is dropped.
    relu : bool
        Apply ReLU as well, which is faster than a separate layer before this one.

    Raises
    ------
    ConfigError
        If the rate is out of range.

    Examples
    --------
    >>> Dropout(0.2).rate
    0.2
    """

    def __init__(self, rate: float, *, relu: bool = False) -> None:
        if not is_number(rate) or not 0 <= rate < 1:
            raise ConfigError(f"dropout: rate is {rate!r}; it must be at least 0 and below 1")
        self.rate, self.relu = float(rate), relu

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(B, ...) -> (B, ...)."""
        mode = training_mode()
        if mode is None or mode.key is None or not self.rate:
            return nn.op.relu(x) if self.relu else x
        inputs, layer = (x._expr, mode.key._expr, mode.rows()), next(mode.layers)
        kept = dropout(*inputs, rate=self.rate, layer=layer, relu=self.relu)
        return nn.op.wrap_nested(kept, "dropout")


def is_drawing() -> bool:
    """Whether dropout is active in the function that is being exported."""
    mode = training_mode()
    return mode is not None and mode.key is not None


def has_dropout(module: nn.Module) -> bool:
    """Whether a dropout layer with a rate above 0 is among the layers of a module."""
    return any(isinstance(m, Dropout) and m.rate > 0 for _, m in named_modules(module))


def dropout_inputs(seed: int, step: int, first_row: int) -> dict[str, np.ndarray]:
    """Return dropout's inputs for the rows of a step's batch from `first_row` on."""
    low, high = keys_of(seed, "dropout", step)
    key = np.array([high << 32 | low], np.uint64).view(np.int64)
    return {KEY: key, FIRST_ROW: np.array([first_row], np.int64)}


class BatchNorm(nn.Module):
    """Normalize each of C columns, as `torch.nn.BatchNorm1d`: ``(x - m) / sqrt(v + eps) * g + b``.

    While training, m and v are mean and variance of the column in the batch, and a step moves the
    running statistics: ``running <- (1 - momentum) running + momentum batch``, where the batch's
    variance divides by n - 1. A skipped step does not change them. When scoring, m and v are the
    running statistics. If a batch is computed in parts, each part is normalized separately; the
    running statistics move once, by the mean of the parts, weighted by rows. A single row has no
    variance: a `Trainer` refuses parts of one row, except in an epoch's last batch, where they do
    not change the statistics.

    Parameters
    ----------
    width : int
        C, extent of the last axis.
    eps : float
        Added to the variance.
    momentum : float
        Weight of the batch in the running statistics.

    Raises
    ------
    ConfigError
        If a number is out of range.

    References
    ----------
    Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167
    """

    def __init__(self, width: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        width = require_int("BatchNorm: width", width)
        for name, number in (("eps", eps), ("momentum", momentum)):
            if not (is_number(number) and 0 < number <= 1):
                raise ConfigError(
                    f"BatchNorm: {name} is {number!r}; it must be above 0 and at most 1"
                )
        self.eps, self.momentum = float(eps), float(momentum)
        self.weight, self.bias = nn.Parameter((width,)), nn.Parameter((width,))
        self.running_mean, self.running_var = buffer(width, 0.0), buffer(width, 1.0)
        self.by_row = False  # whether an export had one number per row and column

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(B, ..., C) -> (B, ..., C)."""
        mode = training_mode()
        if mode is None:
            centred = x - self.running_mean
            spread = nn.op.sqrt(self.running_var + self.eps)
            return centred * (self.weight / spread) + self.bias
        self.by_row |= len(x.shape) == 2 and mapped_tokens() is None
        y, *found = batch_norm(x._expr, self.weight._expr, self.bias._expr, epsilon=self.eps)
        several = _are_several(x)
        for running, new in zip((self.running_mean, self.running_var), found, strict=True):
            before = mode.updates.get(running, running)
            new = nn.wrap_nested(new, "statistic")
            moved = before * (1 - self.momentum) + new * self.momentum
            kept = op.where(several, moved._expr, before._expr)
            mode.updates[running] = nn.wrap_nested(kept, "running")
        return nn.wrap_nested(y, "normalized")


def _are_several(x: nn.Tensor) -> relax.Expr:
    """Whether a column has more than one number, a () bool."""
    count = nn.op.sum(nn.op.ones(x.shape[:-1], "float32"))
    return op.greater(count._expr, relax.const(1.0, "float32"))


def buffer(width: int, initial: float) -> nn.Parameter:
    """Return a parameter that gets its new values from the loss instead of a gradient."""
    made = nn.Parameter((width,))
    made.attrs |= {"buffer": True, "initial": initial}
    return made


class MLP(nn.Module):
    """Linear layers of the given widths.

    Parameters
    ----------
    widths : sequence of int
        Input width, then the width of each layer's result.
    last_relu : bool
        Apply ReLU after the last layer too.
    dtype : str
        Dtype of weights and biases.
    dropout : float
        Dropout rate after each ReLU between two layers.
    batch_norm : bool
        Normalize before each ReLU between two layers, see `BatchNorm`.
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        last_relu: bool,
        dtype: str = "float32",
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        numbers = [require_int("MLP: each of widths", width) for width in widths]
        pairs = zip(numbers[:-1], numbers[1:], strict=True)
        self.layers = nn.ModuleList([nn.Linear(a, b, dtype=dtype) for a, b in pairs])
        inner = numbers[1:-1] if batch_norm else ()
        self.norms = nn.ModuleList([BatchNorm(width) for width in inner])
        self.last_relu = last_relu
        self.dropout = Dropout(dropout, relu=True)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(B, widths[0]) -> (B, widths[-1])."""
        *inner, last = self.layers
        for layer, norm in zip_longest(inner, self.norms):
            x = layer(x)
            x = self.dropout(x if norm is None else norm(x))
        x = last(x)
        return nn.op.relu(x) if self.last_relu else x
