# SPDX-License-Identifier: Apache-2.0
"""Dot interaction of DLRM as a Relax operator: the dot products of all pairs of F + 1 vectors.

With ``x_0`` the dense vector and ``x_1 .. x_F`` the embeddings of a sample, the result is
``[x_0, x_1.x_0, x_2.x_0, x_2.x_1, x_3.x_0, ...]``: the dense vector, then the strict lower triangle
of the Gram matrix row by row (Naumov et al. 2019, https://arxiv.org/abs/1906.00091, with
``interaction_itself`` off).

It has a forward and a backward kernel: matrix products would write each sample's (F + 1) x (F + 1)
matrix to memory; in a kernel it stays in registers and the first-level cache. The modules `cpu` and
`amx`, and further backends, each define a `forward_kernel` and a `backward_kernel`. The choice
depends on the target and on whether operands may be rounded.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.frontend import nn
from tvm.target import Target

from sparsetrain.ad import defvjp
from sparsetrain.backend import current
from sparsetrain.kernels.relax_op import call_kernel, define_op
from sparsetrain.models.interaction import amx, cpu
from sparsetrain.models.interaction.result_layout import output_width
from sparsetrain.runtime.host import has_amx_tiles


def _for_cpu(call: Any) -> Any:
    """Return the module with the CPU kernels of a call; a call that may round uses AMX."""
    rounds = call.attrs is not None and "rounds" in call.attrs
    return amx if rounds and has_amx_tiles(Target.current(allow_none=True)) else cpu


def _sizes(call: Any) -> tuple[int, int, str]:
    embeddings = call.args[1].ty
    return int(embeddings.shape[1]), int(embeddings.shape[2]), str(embeddings.dtype)


def _forward_type(call: Any) -> relax.Type:
    features, width, dtype = _sizes(call)
    return relax.TensorType((call.args[0].ty.shape[0], output_width(features, width)), dtype)


def _forward(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    make = current().kernel("interaction", _for_cpu(call).forward_kernel)
    kernel = make(*_sizes(call))
    return call_kernel(builder, kernel, "interaction", list(call.args), call.ty)


def _backward(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    make = current().kernel("interaction_backward", _for_cpu(call).backward_kernel)
    kernel = make(*_sizes(call))
    outputs = [call.args[0].ty, call.args[1].ty]
    return call_kernel(builder, kernel, "interaction_backward", list(call.args), outputs)


interaction = define_op("interaction", ("dense", "embeddings"), _forward_type, _forward)
interaction_backward = define_op(
    "interaction_backward",
    ("dense", "embeddings", "cotangent"),
    lambda call: relax.TupleType([call.args[0].ty, call.args[1].ty]),
    _backward,
)


def _vjp(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: see `cpu.backward_kernel`."""
    both = builder.emit(interaction_backward(*call.args, cotangent))
    return [relax.TupleGetItem(both, 0), relax.TupleGetItem(both, 1)]


defvjp("relax.sparsetrain.interaction", _vjp)


def dot_interaction(dense: nn.Tensor, embeddings: nn.Tensor) -> nn.Tensor:
    """The operator in `nn` models: (B, D), (B, F, D) -> (B, D + F (F + 1) / 2)."""
    return nn.op.wrap_nested(interaction(dense._expr, embeddings._expr), "interaction")
