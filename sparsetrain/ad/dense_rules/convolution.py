# SPDX-License-Identifier: Apache-2.0
"""Convolutions and transposed ones, of any number of dimensions, layout and grouping.

Their derivatives are sums over the same windows (`sparsetrain.ops.windows`).
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from sparsetrain.errors import ConfigError
from sparsetrain.ops.windows import Convolution, to_large, to_small, to_weight


def _of(call: Any) -> Convolution:
    """The convolution of a call.

    Raises
    ------
    ConfigError
        For layouts with blocks of channels, or a result of another layout.
    """
    data, kernel, out = (str(call.attrs[f"{name}_layout"]) for name in ("data", "kernel", "out"))
    for layout, tensor in zip((data, kernel), call.args, strict=True):
        if len(layout) != len(tensor.ty.shape):
            raise ConfigError(f"no derivative for layout {layout!r}: write a letter for each axis")
    if out not in ("", data):
        raise ConfigError(f"no derivative for out_layout {out!r}: leave it away, or permute_dims")
    return Convolution.of(call)


def _convolution(
    output: relax.Var, call: Any, cotangent: relax.Expr, builder: relax.BlockBuilder
) -> list:
    """Forward: ``y[o] = sum x[w] weight[k]``. Backward: the other two sums."""
    of, (x, weight) = _of(call), call.args
    return [to_large(of, cotangent, weight, x), to_weight(of, cotangent, x, weight)]


def _transposed(
    output: relax.Var, call: Any, cotangent: relax.Expr, builder: relax.BlockBuilder
) -> list:
    """Forward: ``y[w] = sum x[o] weight[k]``. Backward: a convolution, and its sum."""
    of, (x, weight) = _of(call), call.args
    return [to_small(of, cotangent, weight, x), to_weight(of, x, cotangent, weight)]


RULES = {
    **{f"relax.nn.conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"relax.nn.conv{n}d_transpose": _transposed for n in (1, 2, 3)},
}
