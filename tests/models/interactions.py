# SPDX-License-Identifier: Apache-2.0
"""The dot interaction as compiled programs, and NumPy's answers for both interactions."""

from functools import cache

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

import sparsetrain as st
from sparsetrain.models.interaction import interaction, output_width


@cache
def program(features: int, width: int, dtype: str = "float32"):
    """The forward program, and the one whose gradients are the cotangents of ``x`` and ``e``."""
    both = module(features, width, dtype)
    return st.Program(both, "forward"), st.value_and_grad(both, "probe", ["x", "e"])


def module(features: int, width: int, dtype: str) -> tvm.IRModule:
    """``forward`` is the operator alone, ``probe`` the sum of its result times a cotangent."""
    builder = relax.BlockBuilder()
    for name in ("forward", "probe"):
        batch = tvm.tirx.Var("B", "int64")
        shapes = {
            "x": (batch, width),
            "e": (batch, features, width),
            "cotangent": (batch, output_width(features, width)),
        }
        x, e, cotangent = (relax.Var(n, relax.TensorType(s, dtype)) for n, s in shapes.items())
        with builder.function(name, [x, e] if name == "forward" else [x, e, cotangent]):
            with builder.dataflow():
                result = builder.emit(interaction(x, e))
                if name == "probe":
                    result = builder.emit(op.sum(builder.emit(op.multiply(result, cotangent))))
                result = builder.emit_output(result)
            builder.emit_func_output(result)
    return builder.get()


def in_numpy(x: np.ndarray, e: np.ndarray) -> np.ndarray:
    """``[x, lower triangle of the Gram matrix of x and the rows of e]``, per sample."""
    vectors = np.concatenate([x[:, None], e], axis=1)
    gram = vectors @ vectors.transpose(0, 2, 1)
    rows, columns = np.tril_indices(vectors.shape[1], -1)
    return np.concatenate([x, gram[:, rows, columns]], axis=1)


def vjp_in_numpy(x: np.ndarray, e: np.ndarray, cotangent: np.ndarray):
    """Cotangents of `x` and `e`."""
    vectors = np.concatenate([x[:, None], e], axis=1)
    count, width = vectors.shape[1:]
    rows, columns = np.tril_indices(count, -1)
    pairs = np.zeros((len(x), count, count))
    pairs[:, rows, columns] = pairs[:, columns, rows] = cotangent[:, width:]
    through = pairs @ vectors
    return through[:, 0] + cotangent[:, :width], through[:, 1:]


def cross_in_numpy(layers: list[tuple], x: np.ndarray, e: np.ndarray) -> np.ndarray:
    """What layers of (V, W, b) make of the dense vectors and the embeddings."""
    x = x0 = np.concatenate([x, e.reshape(len(e), -1)], axis=1)
    for v, w, b in layers:
        x = x0 * (x @ v.T @ w.T + b) + x
    return x


def mlp_in_numpy(
    params: dict[str, np.ndarray], name: str, x: np.ndarray, last_relu: bool
) -> np.ndarray:
    """An MLP of a model, in float64, from the arrays of its `state_dict`."""
    layers = sum(key.startswith(name) and key.endswith("weight") for key in params)
    for layer in range(layers):
        weight, bias = (params[f"{name}.layers.{layer}.{part}"] for part in ("weight", "bias"))
        x = x @ weight.T.astype("f8") + bias
        if last_relu or layer + 1 < layers:
            x = np.maximum(x, 0)
    return x
