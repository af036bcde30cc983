# SPDX-License-Identifier: Apache-2.0
"""The three sums of a convolution as operators, which a target lowers as it likes.

Without a better way they are the loops of `loops`. The last argument gives a result its shape, and
is not read.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from sparsetrain.kernels.relax_op import define_op
from sparsetrain.ops.windows.loops import Convolution


def _like_last(call: Any) -> relax.Type:
    return call.args[-1].ty


def _loops(name: str) -> Any:
    def legalize(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
        return builder.call_te(getattr(Convolution.of(call), name), *call.args)

    return legalize


def _operator(name: str, arguments: tuple[str, str, str]) -> Any:
    define = define_op(f"convolution_{name}", arguments, _like_last, _loops(name))

    def call(
        of: Convolution, first: relax.Expr, second: relax.Expr, like: relax.Expr
    ) -> relax.Expr:
        return define(first, second, like, **of.attributes())

    call.__name__ = name
    return call


to_large = _operator("to_large", ("small", "weight", "like"))
to_small = _operator("to_small", ("large", "weight", "like"))
to_weight = _operator("to_weight", ("small", "large", "like"))
