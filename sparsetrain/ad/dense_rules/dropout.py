# SPDX-License-Identifier: Apache-2.0
"""Dropout with a mask computed from a key and the position of an element.

No mask is stored: the reverse pass computes it again. The mask does not depend on threads, the
device, or how a batch is split into parts, since a row's number is its position in the whole batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.relax import op

from sparsetrain.ad.dense_rules.accessors import constant
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.relax_op import define_op
from sparsetrain.kernels.table_formats.noise import FIRST, GOLDEN, SECOND, times, uint, word

_ELEMENTWISE = 0
_LAYER = 0x632BE5AB  # odd, so its multiples mod 2^32 all differ


def _type(call: Any) -> relax.Type:
    return call.args[0].ty


def _kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    x = call.args[0]
    keep, relu = 1.0 - float(call.attrs["rate"]), bool(call.attrs["relu"])
    layer = int(call.attrs["layer"]) * _LAYER % 2**32
    limit = uint(min(round(keep * 2**32), 2**32 - 1))

    def dropout(x: te.Tensor, key: te.Tensor, rows: te.Tensor, columns: te.Tensor) -> te.Tensor:
        zero, scale = tirx.const(0.0, x.dtype), tirx.const(1.0 / keep, x.dtype)

        def element(*index: Any) -> Any:
            row = index[0] + rows[0] if rows.shape[0] == 1 else rows[index[0]]
            for extent, i in zip(x.shape[1:-1], index[1:-1], strict=True):
                row = row * extent + i
            row = times(_low(row), FIRST) ^ _low(key[0])
            row = times(row ^ (row >> 16), SECOND) ^ _low(key[0] >> 32)
            bits = row ^ columns[index[-1] if len(index) > 1 else 0]
            bits = times(bits ^ (bits >> 16), FIRST)
            kept = times(bits ^ (bits >> 15), SECOND) < limit
            if relu:
                kept = tirx.And(kept, tirx.Not(x(*index) < zero))  # NaN stays
            return tirx.Select(kept, x(*index) * scale, zero)

        return te.compute(x.shape, element, "dropout")

    words = _columns(builder, x.ty.shape[-1] if x.ty.ndim > 1 else 1, layer)
    # Marked elementwise, so that it fuses with the matrix product before it, like a bias.
    kind = {"op_pattern": _ELEMENTWISE}
    return builder.call_te(dropout, *call.args, words, primfunc_attrs=kind)


def _columns(builder: relax.BlockBuilder, width: Any, layer: int) -> relax.Expr:
    """Return a 32-bit word per column: a constant if the width is static, to save run time.

    TVM could fold the computation itself, but it would compile a kernel to do so.
    """
    if isinstance(width, tirx.IntImm | int):
        numbers = np.arange(int(width), dtype=np.uint32)
        return relax.const(numbers * np.uint32(GOLDEN) ^ np.uint32(layer))

    def columns() -> te.Tensor:
        return te.compute((width,), lambda i: times(_low(i), GOLDEN) ^ uint(layer), "columns")

    return builder.emit(builder.call_te(columns))


def _low(index: Any) -> Any:
    return word(index & tirx.const(0xFFFFFFFF, "int64"))


_dropout = define_op("dropout", ("x", "key", "rows"), _type, _kernel)


def dropout(
    x: relax.Expr,
    key: relax.Expr,
    rows: relax.Expr,
    *,
    rate: float,
    layer: int = 0,
    relu: bool = False,
) -> relax.Expr:
    """Zero elements with probability `rate`, else scale by ``1 / (1 - rate)`` (Srivastava 2014).

    A hash of the key, the layer and the element's position decides whether an element is kept.

    Parameters
    ----------
    x : (B, ...) float
    key : (1,) int64
        A new random number for every step.
    rows : (1,) or (B,) int64
        The row number within the batch of the first row of `x`, or of each row.
    rate : float
        At least 0 and below 1.
    layer : int
        A different number for each use of one key.
    relu : bool
        Apply ReLU as well. The reverse pass then needs no mask: an element was kept where the
        result is positive.

    Returns
    -------
    (B, ...) float

    Raises
    ------
    ConfigError
        If `rate` is outside [0, 1).
    """
    if not 0 <= rate < 1:
        raise ConfigError(f"dropout: rate is {rate!r}; it must be at least 0 and below 1")
    return _dropout(x, key, rows, rate=rate, layer=layer, relu=relu)


def _backward(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the same mask, applied to the cotangent."""
    rate, layer = float(call.attrs["rate"]), int(call.attrs["layer"])
    if not call.attrs["relu"]:
        drawn = _dropout(cotangent, *call.args[1:], rate=rate, layer=layer, relu=False)
        return [drawn, None, None]
    zero = constant(0, output)
    scaled = op.multiply(cotangent, constant(1.0 / (1.0 - rate), output))
    return [op.where(op.less_equal(output, zero), zero, scaled), None, None]


RULES = {"relax.sparsetrain.dropout": _backward}
