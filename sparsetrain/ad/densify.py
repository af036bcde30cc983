# SPDX-License-Identifier: Apache-2.0
"""`densify`: an identity with a dense cotangent, for models that ask for one.

Put it around a lookup's argument if a row-sparse cotangent cannot pass further back, as for an
activation. The cost is a tensor of the argument's size.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te

from sparsetrain.ad.cotangent import make_dense
from sparsetrain.ad.vjp_rules import defvjp
from sparsetrain.kernels.relax_op import define_op


def _copy(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda *index: x(*index), "densify")


_densify = define_op(
    "densify",
    ("x",),
    lambda call: call.args[0].ty,
    lambda builder, call: builder.call_te(_copy, call.args[0]),
)


def densify(x: relax.Expr) -> relax.Expr:
    """Return `x` unchanged, with a dense cotangent as long as `x`, whichever rows of it are read.

    Parameters
    ----------
    x : tensor of any shape, float
        Argument of the lookup, such as an activation or the result of an operator without a
        row-sparse rule.

    Returns
    -------
    tensor of the same shape
    """
    return _densify(x)


def _dense(output: relax.Var, call: Any, cotangent: Any, builder: Any) -> list:
    return [make_dense(cotangent)]


defvjp("relax.sparsetrain.densify", _dense)
defvjp("relax.sparsetrain.densify", _dense, row_sparse=True)
