# SPDX-License-Identifier: Apache-2.0
"""`BatchNorm`: by the batch's statistics in the exported loss, by running ones in the scores."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op
from tvm.relax.frontend import nn

from sparsetrain.ad import batch_norm
from sparsetrain.embedding.ragged import mapped_tokens
from sparsetrain.errors import ConfigError
from sparsetrain.models.training_mode import training_mode
from sparsetrain.system.argument_checks import is_number, require_int


class BatchNorm(nn.Module):
    """Normalize each of C columns, as `torch.nn.BatchNorm1d`: ``(x - m) / sqrt(v + eps) * g + b``.

    While training, m and v are mean and variance of the column in the batch, and a step moves the
    running ones: ``running <- (1 - momentum) running + momentum batch's``, with a variance that
    divides by n - 1. A step that is skipped leaves them. In scores m and v are the running ones.
    Of a batch that is computed in parts each part is normalized by itself; the running statistics
    move once, by the mean of the parts, each by its share of the rows. One number has no variance:
    a `Trainer` refuses parts of one row, and those of an epoch's last batch leave the statistics.

    Parameters
    ----------
    width : int
        C, extent of the last axis.
    eps : float
        Added to the variance.
    momentum : float
        Share of the batch in the running statistics.

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
                raise ConfigError(f"BatchNorm: {name} is {number!r}; it is above 0, and 1 at most")
        self.eps, self.momentum = float(eps), float(momentum)
        self.weight, self.bias = nn.Parameter((width,)), nn.Parameter((width,))
        self.running_mean, self.running_var = buffer(width, 0.0), buffer(width, 1.0)
        self.by_row = False  # whether a column has one number of each row, as far as exported

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
    """Return a vector that the loss gives a new value, and no gradient."""
    made = nn.Parameter((width,))
    made.attrs |= {"buffer": True, "initial": initial}
    return made
