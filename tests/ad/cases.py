# SPDX-License-Identifier: Apache-2.0
"""One line per rule: a small float64 program that uses it, for every test that takes a table.

Shapes are numbers or the letter of a symbolic extent; `SIZES` gives each letter a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.frontend import nn

from sparsetrain import ad
from sparsetrain.embedding import embedding_bag, lookup
from sparsetrain.models.binned import binned
from sparsetrain.models.interaction import interaction
from sparsetrain.ops.graph import csr_product

SIZES = {"B": 5, "N": 7}
ROWS = 6  # rows of every table here; ids lie below


@dataclass(frozen=True)
class Case:
    """A program: differentiated parameters, other inputs, and its body.

    `body` gets the variables by name and returns any floating-point tensor; the loss is the sum
    of its product with ``cos(1), cos(2), ...``, so that every element matters differently.
    """

    name: str
    rule: str
    params: Mapping[str, tuple]
    body: Callable[..., relax.Expr]
    ids: Mapping[str, tuple] = field(default_factory=dict)
    dtype: str = "float64"


def _bag(mode: str, features: int = 1) -> Callable[..., relax.Expr]:
    return lambda table, ids, offsets: embedding_bag(
        table, ids, offsets, mode=mode, features=features
    )


X = {"x": ("B", 3)}
XY = {"x": ("B", 3), "y": ("B", 3)}
TABLE = {"table": (ROWS, 3)}
IDS = {"ids": ("N",)}
BAGS = {"ids": ("N",), "offsets": (6,)}


def _of_bins(weight: relax.Expr, bias: relax.Expr, missing: relax.Expr) -> relax.Expr:
    """Two numbers in three bins each; in the last row, the second number is missing."""
    dense = [[-2.0, 0.5, 0, 0], [1.5, 7.0, 0, 0], [0.2, 1.0, 0, 0], [3.0, 0.0, 0, 1]]
    begins = [[-np.inf, 0.0, 1.0], [-np.inf, 1.0, 2.0]]
    starts, scales = [[-1.0, 0.0, 1.0], [0.0, 1.0, 2.0]], [[1.0, 1.0, 0.5], [1.0, 1.0, 0.25]]
    given = (relax.const(np.array(each), "float64") for each in (dense, starts, scales, begins))
    return binned(*(nn.Tensor(_expr=each) for each in (*given, weight, bias, missing)))._expr


def _of_graph(dense: relax.Expr) -> relax.Expr:
    """Rows 0 and 2, none, rows 1, 2 and 5 of six."""
    columns, ends = ([0, 2, 1, 2, 5], "int32"), ([2, 2, 5], "int64")
    rows, their_ends = ([0, 2, 0, 2, 2], "int32"), ([1, 2, 4, 4, 4, 5], "int64")
    given = (columns, ends, rows, their_ends)
    return csr_product(dense, *(relax.const(np.array(v, t), t) for v, t in given))


DENSE_CASES = [
    Case("csr product", "relax.sparsetrain.csr_product", {"dense": (6, 3)}, _of_graph),
    Case("relu", "relax.nn.relu", X, lambda x: op.nn.relu(x)),
    Case("leaky relu", "relax.nn.leakyrelu", X, lambda x: op.nn.leakyrelu(x, 0.2)),
    Case("leaky relu, falling", "relax.nn.leakyrelu", X, lambda x: op.nn.leakyrelu(x, -0.2)),
    Case(
        "prelu",
        "relax.nn.prelu",
        {"x": ("B", 3), "alpha": (3,)},
        lambda x, alpha: op.nn.prelu(x, alpha, axis=1),
    ),
    Case(
        "prelu along the first axis",
        "relax.nn.prelu",
        {"x": (2, 3, 2), "alpha": (2,)},
        lambda x, alpha: op.nn.prelu(x, alpha, axis=0),
    ),
    Case("square", "relax.square", X, lambda x: op.square(x)),
    Case("inverse root", "relax.rsqrt", X, lambda x: op.rsqrt(op.exp(x))),
    Case("error function", "relax.erf", X, lambda x: op.erf(x)),
    *(
        Case(name, f"relax.{name}", X, lambda x, name=name: getattr(op, name)(x))
        for name in ("abs", "sign", "floor", "ceil", "round")
    ),
    Case("trunc", "relax.trunc", X, lambda x: op.trunc(x)),
    Case("where", "relax.where", XY, lambda x, y: op.where(op.greater(x, y), op.exp(x), y)),
    Case(
        "where, a row and a number",
        "relax.where",
        {"x": ("B", 3), "row": (3,), "number": ()},
        lambda x, row, number: op.add(
            op.where(op.greater(x, row), x, row), op.where(op.greater(row, x), number, row)
        ),
    ),
    Case("power", "relax.power", XY, lambda x, y: op.power(op.exp(x), y)),
    Case("power of numbers below 0", "relax.power", X, lambda x: op.power(x, _number(3.0))),
    Case(
        "log of a sum of exponentials",
        "relax.log_add_exp",
        {"x": ("B", 1), "y": (3,)},
        lambda x, y: op.log_add_exp(x, y),
    ),
    Case(
        "full",
        "relax.full",
        {"value": ()},
        lambda value: op.full([4, 2], op.square(value)),
    ),
    Case(
        "full like what the value is made of",
        "relax.full_like",
        X,
        lambda x: op.multiply(op.full_like(x, _emit(op.sum(x))), x),
    ),
    Case("tile", "relax.tile", X, lambda x: op.tile(x, [3])),
    Case("tile to more axes", "relax.tile", {"x": (2, 3)}, lambda x: op.tile(x, [2, 1, 3])),
    Case("repeat", "relax.repeat", X, lambda x: op.repeat(x, 2, axis=-1)),
    Case("repeat, flattened", "relax.repeat", {"x": (2, 3)}, lambda x: op.repeat(x, 2)),
    Case("flip", "relax.flip", X, lambda x: op.flip(x, axis=-1)),
    Case("lower triangle", "relax.tril", {"x": (4, 4)}, lambda x: op.tril(x, -1)),
    Case("pad", "relax.nn.pad", X, lambda x: op.nn.pad(x, [0, 0, 1, 2])),
    Case(
        "gathered elements",
        "relax.gather_elements",
        {"x": ("B", ROWS)},
        lambda x, ids: op.gather_elements(x, ids, axis=1),
        {"ids": ("B", 2)},
    ),
    Case(
        "gathered rows of a batch",
        "relax.gather_nd",
        {"x": ("B", ROWS, 2)},
        lambda x, ids: op.gather_nd(x, ids, batch_dims=1),
        {"ids": ("B", 3, 1)},
    ),
    Case(
        "gathered numbers, from the end",
        "relax.gather_nd",
        {"x": (ROWS, ROWS, "B")},
        lambda x, ids: op.gather_nd(x, op.subtract(ids, relax.const(3, "int64"))),
        {"ids": ("N", 2)},
    ),
    Case(
        "indexed by tensors",
        "relax.index_tensor",
        {"x": (ROWS, ROWS, 2)},
        lambda x, ids, more: op.index_tensor(_emit(op.square(x)), [ids, more]),
        {"ids": ("N", 1), "more": (3,)},
    ),
    Case(
        "flat behind the batch",
        "relax.nn.batch_flatten",
        {"x": (2, 3, 2)},
        lambda x: op.nn.batch_flatten(x),
    ),
    Case(
        "einsum",
        "relax.einsum",
        {"x": ("B", 2, 3), "y": ("B", 4, 3)},
        lambda x, y: op.einsum([x, y], "bij,bkj->bik"),
    ),
    Case(
        "einsum of three, with sums inside",
        "relax.einsum",
        {"x": (2, 3), "y": (3, 4), "z": (5,)},
        lambda x, y, z: op.einsum([x, y, z], "ij,jk,l->ki"),
    ),
    Case("variance of all", "relax.variance", X, lambda x: op.variance(x)),
    Case("variance over a batch", "relax.variance", X, lambda x: op.variance(x, [0])),
    Case("deviation, axis kept", "relax.std", X, lambda x: op.std(x, [-1], keepdims=True)),
    Case("running sum", "relax.cumsum", X, lambda x: op.cumsum(x, axis=0)),
    Case("running sum of all", "relax.cumsum", X, lambda x: op.cumsum(x)),
    Case(
        "running sum without one's own",
        "relax.cumsum",
        X,
        lambda x: op.cumsum(x, axis=-1, exclusive=True),
    ),
    Case(
        "cross-entropy of classes",
        "relax.nn.cross_entropy_with_logits",
        XY,
        lambda x, y: op.nn.cross_entropy_with_logits(op.nn.log_softmax(x), y),
    ),
    Case(
        "cross-entropy of classes, no batch",
        "relax.nn.cross_entropy_with_logits",
        {"x": (3,), "y": (3,)},
        lambda x, y: op.nn.cross_entropy_with_logits(x, y),
    ),
    Case(
        "negative log-likelihood",
        "relax.nn.nll_loss",
        {"x": ("B", ROWS)},
        lambda x, ids: op.nn.nll_loss(x, ids, reduction="mean", ignore_index=1),
        {"ids": ("B",)},
    ),
    Case(
        "dropout",
        "relax.sparsetrain.dropout",
        {"x": ("B", 4, 3)},
        lambda x, ids, first: ad.dropout(op.exp(x), ids, first, rate=0.3, layer=2),
        {"ids": (1,), "first": (1,)},
    ),
    Case(
        "dropout of ReLU",
        "relax.sparsetrain.dropout",
        {"x": ("B", 4)},
        lambda x, ids, first: ad.dropout(x, ids, first, rate=0.3, relu=True),
        {"ids": (1,), "first": (1,)},
    ),
    Case(
        "batch norm",
        "relax.sparsetrain.batch_norm",
        {"x": ("B", 3), "gamma": (3,), "beta": (3,)},
        lambda x, gamma, beta: ad.batch_norm(x, gamma, beta, epsilon=1e-3)[0],
    ),
    Case(
        "batch norm over two axes",
        "relax.sparsetrain.batch_norm",
        {"x": ("B", 4, 3), "gamma": (3,), "beta": (3,)},
        lambda x, gamma, beta: op.nn.relu(ad.batch_norm(op.exp(x), gamma, beta)[0]),
    ),
    Case("squeeze", "relax.squeeze", {"x": ("B", 1, 3)}, lambda x: op.squeeze(x, axis=[1])),
    Case("flatten", "relax.flatten", {"x": (2, 3, 2)}, lambda x: op.flatten(x)),
    Case("clip", "relax.clip", X, lambda x: op.clip(x, -1.0, 1.0)),
    Case("softplus", "relax.nn.softplus", X, lambda x: op.nn.softplus(x, beta=1.5)),
    Case(
        "softplus above a threshold",
        "relax.nn.softplus",
        X,
        lambda x: op.nn.softplus(x, beta=1.5, threshold=0.25),
    ),
    Case("gelu", "relax.nn.gelu", X, lambda x: op.nn.gelu(x)),
    Case("gelu by tanh", "relax.nn.gelu_tanh", X, lambda x: op.nn.gelu_tanh(x)),
    Case(
        "layer norm",
        "relax.nn.layer_norm",
        {"x": ("B", 3), "gamma": (3,), "beta": (3,)},
        lambda x, gamma, beta: op.nn.layer_norm(x, gamma, beta, axes=[-1]),
        dtype="float32",
    ),
    Case(
        "layer norm over two axes",
        "relax.nn.layer_norm",
        {"x": ("B", 2, 3), "gamma": (2, 3), "beta": (2, 3)},
        lambda x, gamma, beta: op.nn.layer_norm(x, gamma, beta, axes=[-2, -1]),
        dtype="float32",
    ),
    Case(
        "layer norm, told not to scale",
        "relax.nn.layer_norm",
        {"x": ("B", 3), "gamma": (3,), "beta": (3,)},
        lambda x, gamma, beta: op.nn.layer_norm(
            x, gamma, beta, axes=[-1], center=False, scale=False
        ),
        dtype="float32",
    ),
    Case(
        "RMS norm",
        "relax.nn.rms_norm",
        {"x": ("B", 3), "weight": (3,)},
        lambda x, weight: op.nn.rms_norm(x, weight, axes=[-1], epsilon=0.01),
        dtype="float32",
    ),
    Case("maximum of all", "relax.max", X, lambda x: op.max(x)),
    Case("maximum over a batch", "relax.max", X, lambda x: op.max(x, axis=[0])),
    Case("maximum, axis kept", "relax.max", X, lambda x: op.max(x, axis=[-1], keepdims=True)),
    Case("minimum over two axes", "relax.min", {"x": (2, 3, 2)}, lambda x: op.min(x, [-1, 0])),
    Case("mean of all", "relax.mean", X, lambda x: op.mean(x)),
    Case("mean over a batch", "relax.mean", X, lambda x: op.mean(x, axis=[0])),
    Case("mean, axis kept", "relax.mean", X, lambda x: op.mean(x, axis=[-1], keepdims=True)),
    Case(
        "slice",
        "relax.strided_slice",
        {"x": (5, 4)},
        lambda x: op.strided_slice(x, axes=[0, 1], begin=[1, 0], end=[5, 3], strides=[2, 1]),
    ),
    Case(
        "slice to the end of the batch",
        "relax.strided_slice",
        X,
        lambda x: op.strided_slice(x, axes=[0], begin=[1], end=[x.ty.shape[0]]),
    ),
    Case(
        "slice from the end",
        "relax.strided_slice",
        {"x": (5, 4)},
        lambda x: op.strided_slice(x, axes=[-1], begin=[-3], end=[-1]),
    ),
    Case(
        "slice from before the front",
        "relax.strided_slice",
        {"x": (5, 4)},
        lambda x: op.strided_slice(x, axes=[0], begin=[-9], end=[3], strides=[2]),
    ),
    Case(
        "take from an activation, last axis",
        "relax.take",
        X,
        lambda x, ids: op.take(_emit(op.exp(x)), ids, axis=-1, mode="clip"),
        IDS,
    ),
    Case(
        "take from an activation by a matrix of ids",
        "relax.take",
        {"x": ("B", ROWS, 2)},
        lambda x, ids: op.take(_emit(op.exp(x)), ids, axis=1),
        {"ids": ("N", 2)},
    ),
    Case(
        "take from an activation, around the end",
        "relax.take",
        X,
        lambda x, ids: op.take(
            _emit(op.exp(x)), op.subtract(ids, relax.const(9, "int64")), axis=0, mode="wrap"
        ),
        IDS,
    ),
    Case(
        "take from an activation, one column",
        "relax.take",
        X,
        lambda x: op.take(_emit(op.exp(x)), relax.const(2), axis=1),
    ),
    Case(
        "take from an activation, from the end",
        "relax.take",
        {"x": ("B", "N", 3)},
        lambda x: op.take(_emit(op.exp(x)), relax.const([-1, 0, -1]), axis=1),
    ),
    Case(
        "take of nothing from an activation",
        "relax.take",
        {"x": ("B", 2, 3)},
        lambda x: op.add(
            op.sum(op.take(_emit(op.exp(x)), relax.const(np.empty(0, np.int64)), axis=2)),
            op.sum(x),
        ),
    ),
    Case(
        "take of rows of an activation, from the end",
        "relax.take",
        X,
        lambda x: op.take(_emit(op.exp(x)), relax.const([-1, -2]), axis=0),
    ),
    Case(
        "concat along a batch",
        "relax.concat",
        {"x": ("B", 3), "y": ("N", 3), "z": (2, 3)},
        lambda x, y, z: op.concat([x, y, z], axis=0),
    ),
    Case(
        "concat of columns",
        "relax.concat",
        {"x": ("B", 3), "y": ("B", 2)},
        lambda x, y: op.concat([x, y], axis=-1),
    ),
    Case(
        "stack",
        "relax.stack",
        {"x": ("B", 3), "y": ("B", 3)},
        lambda x, y: op.stack([x, y], axis=1),
    ),
    Case(
        "stack at the end",
        "relax.stack",
        {"x": (2, 3), "y": (2, 3), "z": (2, 3)},
        lambda x, y, z: op.stack([x, y, z], axis=-1),
    ),
    Case(
        "binary cross-entropy",
        "relax.sparsetrain.bce_with_logits",
        {"z": ("B", 1), "y": ("B", 1)},
        lambda z, y: ad.bce_with_logits(z, y),
    ),
    Case(
        "interaction",
        "relax.sparsetrain.interaction",
        {"x": ("B", 3), "e": ("B", 4, 3)},
        lambda x, e: interaction(x, e),
    ),
    Case(
        "binned",
        "relax.sparsetrain.binned",
        {"weight": (2, 6, 3), "bias": (2, 3), "missing": (2, 3)},
        _of_bins,
    ),
    Case(
        "densify",
        "relax.sparsetrain.densify",
        {"x": (4, 3), "w": (3, 2)},
        lambda x, w: op.take(ad.densify(op.matmul(x, w)), relax.const([1, 1, 3]), axis=0),
    ),
]

SPARSE_CASES = [
    Case("take", "relax.take", TABLE, lambda table, ids: op.take(table, ids, axis=0), IDS),
    Case(
        "take from a vector",
        "relax.take",
        {"table": (ROWS,)},
        lambda table, ids: op.take(table, ids, axis=0),
        IDS,
    ),
    Case(
        "take by a matrix of ids",
        "relax.take",
        TABLE,
        lambda table, ids: op.take(table, ids, axis=0),
        {"ids": ("B", 2)},
    ),
    Case(
        "take, clipped",
        "relax.take",
        TABLE,
        lambda table, ids: op.take(table, op.subtract(ids, relax.const(2, "int64")), 0, "clip"),
        IDS,
    ),
    Case(
        "take of rows, from the end",
        "relax.take",
        TABLE,
        lambda table: op.take(table, relax.const([-1, 0, -ROWS, -1]), axis=0),
    ),
    Case(
        "take by computed ids, from the end",
        "relax.take",
        TABLE,
        lambda table, ids: op.take(table, op.subtract(ids, relax.const(ROWS, "int64")), axis=0),
        IDS,
    ),
    Case(
        "take from an expanded table",
        "relax.expand_dims",
        TABLE,
        lambda table, ids: op.take(_emit(op.expand_dims(table, 0)), ids, axis=1),
        {"ids": ("N", 2)},
    ),
    Case(
        "take from a table expanded and squeezed",
        "relax.squeeze",
        TABLE,
        lambda table, ids: op.take(_emit(op.squeeze(_emit(op.expand_dims(table, [0])))), ids, 0),
        IDS,
    ),
    Case(
        "take from a stack of tables",
        "relax.stack",
        {"table": (ROWS, 3), "other": (ROWS, 3)},
        lambda table, other, ids: op.take(_emit(op.stack([table, other, table])), ids, axis=1),
        IDS,
    ),
    Case(
        "rows of scaled copies, indexed",
        "relax.concat",
        {"table": (ROWS, 3), "other": (1, ROWS, 3)},
        lambda table, other, ids: op.index_tensor(
            _emit(
                op.concat(
                    [
                        other,
                        _emit(
                            op.multiply(
                                _emit(op.expand_dims(table, 0)), relax.const(0.5, "float64")
                            )
                        ),
                    ],
                    0,
                )
            ),
            [relax.const([1, 0, 1]), relax.const([-1, 2, 2])],
        ),
        IDS,
    ),
    Case(
        "rows gathered, from the end",
        "relax.gather_nd",
        TABLE,
        lambda table, ids: op.gather_nd(table, op.subtract(ids, relax.const(ROWS, "int64"))),
        {"ids": ("B", 2, 1)},
    ),
    Case(
        "elements gathered from a vector",
        "relax.gather_elements",
        {"table": (ROWS,)},
        lambda table, ids: op.gather_elements(table, ids),
        IDS,
    ),
    Case(
        "rows indexed by a tensor",
        "relax.index_tensor",
        TABLE,
        lambda table, ids: op.index_tensor(table, [ids]),
        {"ids": ("B", 2)},
    ),
    Case(
        "rows of a slice",
        "relax.strided_slice",
        TABLE,
        lambda table: op.strided_slice(table, axes=[0], begin=[-5], end=[ROWS], strides=[3]),
    ),
    Case(
        "as many rows as a batch has",
        "relax.strided_slice",
        {"table": (ROWS, 3), "weights": ("B", 3)},
        lambda table, weights: op.multiply(
            op.strided_slice(table, [0], [0], [weights.ty.shape[0]], assume_inbound=True), weights
        ),
    ),
    Case(
        "rows and columns of a slice",
        "relax.strided_slice",
        TABLE,
        lambda table: op.strided_slice(table, axes=[1, 0], begin=[-2, 1], end=[3, 3]),
    ),
    Case("lookup", "relax.sparsetrain.lookup", TABLE, lambda table, ids: lookup(table, ids), IDS),
    Case(
        "lookup by a matrix of ids",
        "relax.sparsetrain.lookup",
        TABLE,
        lambda table, ids: lookup(table, ids),
        {"ids": ("B", 2)},
    ),
    Case("bag, sum", "relax.sparsetrain.embedding_bag", TABLE, _bag("sum"), BAGS),
    Case("bag, mean", "relax.sparsetrain.embedding_bag", TABLE, _bag("mean"), BAGS),
    Case(
        "bags of features",
        "relax.sparsetrain.embedding_bag",
        TABLE,
        _bag("mean", features=5),
        BAGS,
    ),
    Case(
        "weighted bag",
        "relax.sparsetrain.embedding_bag",
        {"table": (ROWS, 3), "weights": ("N",)},
        lambda table, weights, ids, offsets: embedding_bag(table, ids, offsets, weights),
        BAGS,
    ),
    Case(
        "table looked up twice",
        "relax.take",
        TABLE,
        lambda table, ids, more: op.concat(
            [op.take(table, ids, axis=0), op.take(table, more, axis=0)], axis=0
        ),
        {"ids": ("N",), "more": (3,)},
    ),
    Case(
        "plain and pooled lookups of one table",
        "relax.sparsetrain.embedding_bag",
        TABLE,
        lambda table, ids, offsets: _emit(
            op.concat(
                [
                    _emit(lookup(table, ids)),
                    _emit(op.reshape(_emit(_bag("sum")(table, ids, offsets)), [-1, 3])),
                ],
                axis=0,
            )
        ),
        BAGS,
    ),
    Case("cast", "relax.astype", TABLE, lambda table, ids: lookup(_half(table), ids), IDS),
    Case(
        "negate", "relax.negative", TABLE, lambda table, ids: lookup(op.negative(table), ids), IDS
    ),
    Case(
        "times a number",
        "relax.multiply",
        TABLE,
        lambda table, ids: lookup(op.multiply(relax.const(3.0, "float64"), table), ids),
        IDS,
    ),
    Case(
        "over a number",
        "relax.divide",
        TABLE,
        lambda table, ids: lookup(op.divide(table, relax.const([4.0], "float64")), ids),
        IDS,
    ),
    Case(
        "tables stacked by reshape",
        "relax.reshape",
        {"table": (2, ROWS // 2, 3)},
        lambda table, ids: lookup(op.reshape(table, [ROWS, 3]), ids),
        IDS,
    ),
    Case(
        "tables on top of each other",
        "relax.concat",
        {"first": (2, 3), "second": (ROWS - 2, 3)},
        lambda first, second, ids: lookup(op.concat([first, second], axis=0), ids),
        IDS,
    ),
]

CASES = DENSE_CASES + SPARSE_CASES


def _emit(expr: relax.Expr) -> relax.Expr:
    return relax.BlockBuilder.current().emit(expr)


def _number(value: float) -> relax.Expr:
    return relax.const(value, "float64")


def _half(table: relax.Expr) -> relax.Expr:
    """Through float32 and back: two casts, so the gradient is that of a float64 program."""
    return op.astype(op.astype(table, "float32"), "float64")


def build(case: Case) -> tvm.IRModule:
    """The case as a Relax module with one function ``loss``."""
    letters = {letter: tvm.tirx.Var(letter, "int64") for letter in SIZES}

    def variable(name: str, shape: tuple, dtype: str) -> relax.Var:
        extents = [letters.get(extent, extent) for extent in shape]
        return relax.Var(name, relax.TensorType(extents, dtype))

    variables = {n: variable(n, shape, case.dtype) for n, shape in case.params.items()}
    variables |= {n: variable(n, shape, "int64") for n, shape in case.ids.items()}
    builder = relax.BlockBuilder()
    with builder.function("loss", list(variables.values())):
        with builder.dataflow():
            result = builder.emit(builder.normalize(case.body(**variables)))
            weighted = builder.emit(op.multiply(result, weights(builder, result)))
            loss = builder.emit_output(builder.emit(op.sum(weighted)))
        builder.emit_func_output(loss)
    return builder.get()


def weights(builder: relax.BlockBuilder, like: relax.Expr) -> relax.Expr:
    """cos 1, cos 2, cos 3, ... in the shape of `like`; numbers where that is known.

    What is computed of constants TVM would compile and run for each of them while it folds them.
    """
    shape, dtype = like.ty.shape, str(like.ty.dtype)
    if all(isinstance(extent, tvm.tirx.IntImm) for extent in shape):
        extents = [int(extent) for extent in shape]
        steps = np.arange(1, 1 + math.prod(extents), dtype=dtype)
        return relax.const(np.cos(steps).reshape(extents), dtype)
    ones = builder.emit(op.ones(shape, dtype))
    flat = builder.emit(op.reshape(ones, [-1]))
    ramp = builder.emit(op.reshape(builder.emit(op.cumsum(flat, axis=0)), shape))
    return builder.emit(op.cos(ramp))


def sample(case: Case, seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Parameters and inputs with numbers in them; ids repeat, bags are uneven and one is empty."""
    rng = np.random.default_rng(seed)

    def shape(letters: tuple) -> tuple[int, ...]:
        return tuple(SIZES.get(extent, extent) for extent in letters)

    params = {n: 4 * rng.random(shape(s)) - 2 for n, s in case.params.items()}
    ids = {n: rng.integers(0, ROWS, shape(s)) for n, s in case.ids.items() if n != "offsets"}
    if "offsets" in case.ids:
        ids["offsets"] = np.array([0, 3, 3, 4, 6, 7])
    return params, ids
