# SPDX-License-Identifier: Apache-2.0
"""`Dropout`: a layer that acts in the exported loss, and is the identity in the exported scores."""

from __future__ import annotations

import numpy as np
from tvm.relax.frontend import nn

from sparsetrain.ad import dropout
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats.noise import keys_of
from sparsetrain.models.modules import named_modules
from sparsetrain.models.training_mode import training_mode
from sparsetrain.system.argument_checks import is_number

KEY, FIRST_ROW = "dropout_key", "dropout_first_row"  # inputs of the exported loss


class Dropout(nn.Module):
    """Zero elements with probability `rate` while training, and divide the others by ``1 - rate``.

    The mask follows from the trainer's seed, the step and an element's place: it has the same bits
    for any number of threads, after resuming, and for any number of parts of a batch. The first
    axis is that of the batch's rows, or of the tokens of a sequence in `RaggedTensor.map`.

    Parameters
    ----------
    rate : float
        At least 0 and below 1; with 0 no element is dropped.
    relu : bool
        Apply ReLU as well, which is quicker than a layer of its own before this one.

    Raises
    ------
    ConfigError
        For another rate.

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
    """Whether layers of dropout act in the function that is being exported."""
    mode = training_mode()
    return mode is not None and mode.key is not None


def has_dropout(module: nn.Module) -> bool:
    """Whether a dropout layer with a rate above 0 is among the layers of a module."""
    return any(isinstance(m, Dropout) and m.rate > 0 for _, m in named_modules(module))


def dropout_inputs(seed: int, step: int, first_row: int) -> dict[str, np.ndarray]:
    """Return the inputs of a loss for the rows of a step's batch from `first_row` on."""
    low, high = keys_of(seed, "dropout", step)
    key = np.array([high << 32 | low], np.uint64).view(np.int64)
    return {KEY: key, FIRST_ROW: np.array([first_row], np.int64)}
