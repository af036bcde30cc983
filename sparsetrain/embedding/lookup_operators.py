# SPDX-License-Identifier: Apache-2.0
"""Embedding lookups as Relax operators, and their row-sparse reverse rules.

``lookup`` reads one row per id; ``embedding_bag`` sums or averages a bag of rows, as
`torch.nn.EmbeddingBag` does. The cotangent of the table is a `RowSparse`. For bags it is not
expanded: all ids of a bag point at one value row. Per-sample weights receive a dense cotangent. For
a table stored in less than float32, results and cotangents are still float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.relax import op

from sparsetrain.ad import defvjp, row_sparse_cotangent
from sparsetrain.backend import current
from sparsetrain.embedding import lookup_kernels
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.relax_op import call_kernel, define_op
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.ops.operand_shapes import simplified
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.system.argument_checks import require_int


def _dtype(expr: relax.Expr) -> str:
    return str(expr.ty.dtype)


def _width(expr: relax.Expr) -> int:
    return int(expr.ty.shape[-1])


def _row(table: relax.Expr) -> tuple[int, str]:
    """Return D, and the dtype of computations with the table's values."""
    if len(table.ty.shape) != 2:
        raise ConfigError(
            f"a table to look up must have the shape (V, D), not {table.ty.shape}: reshape it"
        )
    stored = format_of(_dtype(table))
    return stored.width(_width(table)), stored.computed


# --- One id per row of the result ---------------------------------------------------------------


def _lookup_type(call: Any) -> relax.Type:
    table, ids = call.args
    width, dtype = _row(table)
    return relax.TensorType((*ids.ty.shape, width), dtype)


def _lookup_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    table, ids = call.args
    width, dtype = _row(table)
    kernel = current().kernel("lookup", lookup_kernels.lookup_kernel)(
        width, _dtype(table), _dtype(ids)
    )
    if len(ids.ty.shape) == 1:
        return call_kernel(builder, kernel, "lookup", [table, ids], call.ty)
    flat = builder.emit(op.reshape(ids, [-1]))
    out = relax.TensorType((flat.ty.shape[0], width), dtype)
    rows = builder.emit(call_kernel(builder, kernel, "lookup", [table, flat], out))
    return op.reshape(rows, call.ty.shape)


_lookup = define_op("lookup", ("table", "ids"), _lookup_type, _lookup_kernel)


def lookup(table: relax.Expr, ids: relax.Expr) -> relax.Expr:
    """Return the table row of each id.

    Parameters
    ----------
    table : (V, D) float
        Embedding parameter.
    ids : integers of any shape
        Rows, each in [0, V).

    Returns
    -------
    (*ids.shape, D) float
    """
    return _lookup(table, ids)


def _lookup_vjp(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    table, ids = call.args
    return [row_sparse_cotangent(table, ids, cotangent), None]


# --- A bag of ids per row of the result ---------------------------------------------------------


def _bag_type(call: Any) -> relax.Type:
    table, _, offsets, _ = call.args
    if str(offsets.ty.dtype) != "int64":
        raise ConfigError(f"embedding_bag: offsets must be int64, not {offsets.ty.dtype}")
    features = int(call.attrs["features"])
    batch = (offsets.ty.shape[0] - 1) // features
    width, dtype = _row(table)
    # Simplify the extent, because TVM's fusion treats B + 1 - 1 and B as different.
    return simplified(relax.TensorType((batch, features, width), dtype))


def _bag_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    table, ids, *_ = call.args
    kernel = current().kernel("embedding_bag", lookup_kernels.bag_kernel)(
        _row(table)[0],
        _dtype(table),
        _dtype(ids),
        int(call.attrs["features"]),
        _averaged(call),
        bool(call.attrs["weighted"]),
    )
    return call_kernel(builder, kernel, "embedding_bag", list(call.args), call.ty)


_bag = define_op("embedding_bag", ("table", "ids", "offsets", "weights"), _bag_type, _bag_kernel)


def embedding_bag(
    table: relax.Expr,
    ids: relax.Expr,
    offsets: relax.Expr,
    weights: relax.Expr | None = None,
    *,
    mode: str | Sequence[str] = "sum",
    features: int = 1,
) -> relax.Expr:
    """Return the sum or mean of the table rows of each bag; zeros for an empty bag.

    Parameters
    ----------
    table : (V, D) float
        Embedding parameter.
    ids : (N,) int32 or int64
        The ids of all bags, ordered by feature, then by bag.
    offsets : (F * B + 1,) int64
        Where each bag begins in `ids`; the last entry is N.
    weights : (N,) float, optional
        Per-sample weights; only with ``mode="sum"``, as in PyTorch.
    mode : {"sum", "mean"}, or a sequence of F of them
        How bags are pooled, for all features or for each.
    features : int
        F, the number of features.

    Returns
    -------
    (B, F, D) float
    """
    features = require_int("embedding_bag: features", features)
    modes = [mode] * features if isinstance(mode, str) else [*mode]
    if not {*modes} <= {"sum", "mean"} or ("mean" in modes and weights is not None):
        raise ConfigError("embedding_bag: mode is 'sum', or 'mean' without weights")
    if len(modes) != features:
        raise ConfigError(f"embedding_bag: {len(modes)} modes for {features} features")
    return _bag(
        table,
        ids,
        offsets,
        offsets if weights is None else weights,
        features=features,
        mean=[int(each == "mean") for each in modes],
        weighted=int(weights is not None),
    )


def _averaged(call: Any) -> bool | tuple[bool, ...]:
    """Return whether bags are averaged: for all features, or for each if they differ."""
    each = tuple(bool(mean) for mean in call.attrs["mean"])
    return each if len({*each}) > 1 else each[0]


def _call_op(name: str, arguments: tuple[str, ...], infer: Any, make: Any, variant: Any) -> Any:
    """Define an operator with kernel ``make(*variant(call))``."""

    def legalize(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
        kernel = current().kernel(name, make)(*variant(call))
        return call_kernel(builder, kernel, name, list(call.args), call.ty)

    return define_op(name, arguments, infer, legalize)


def _vector(length_of: int, dtype_of: int | str) -> Any:
    def infer(call: Any) -> relax.Type:
        dtype = dtype_of if isinstance(dtype_of, str) else call.args[dtype_of].ty.dtype
        return relax.TensorType((call.args[length_of].ty.shape[0],), dtype)

    return infer


_bag_source = _call_op(
    "bag_source",
    ("offsets", "ids"),
    _vector(1, "int32"),
    lookup_kernels.bag_source_kernel,
    lambda call: (int(call.attrs["features"]), _dtype(call.args[1])),
)
_bag_mean_cotangent = _call_op(
    "bag_mean_cotangent",
    ("cotangent", "offsets"),
    lambda call: call.args[0].ty,
    lookup_kernels.bag_mean_cotangent_kernel,
    lambda call: (
        *(_width(call.args[0]), _dtype(call.args[0]), int(call.args[0].ty.shape[1])),
        _averaged(call),
    ),
)
_weighted_values = _call_op(
    "weighted_values",
    ("cotangent", "source", "weights"),
    lambda call: relax.TensorType(
        (call.args[1].ty.shape[0], call.args[0].ty.shape[1]), call.args[0].ty.dtype
    ),
    lookup_kernels.weighted_values_kernel,
    lambda call: (_width(call.args[0]), _dtype(call.args[0])),
)
_weight_cotangent = _call_op(
    "weight_cotangent",
    ("table", "ids", "cotangent", "source"),
    _vector(1, 2),
    lookup_kernels.weight_cotangent_kernel,
    lambda call: (_row(call.args[0])[0], _dtype(call.args[0]), _dtype(call.args[1])),
)


def _bag_vjp(
    output: relax.Var, call: Any, cotangent: relax.Expr, builder: relax.BlockBuilder
) -> list:
    """Forward Form: ``y[bag] = sum of w[n] table[ids[n]]`` over the bag, or its mean.

    Backward: ``RowSparse(ids, cotangent, source=bag of n)``; divided by the bag's length for a
    mean; with weights, one value row ``w[n] cotangent[bag of n]`` per id, and for the weights
    ``table[ids[n]] . cotangent[bag of n]``.
    """
    table, ids, offsets, weights = call.args
    features = int(call.attrs["features"])
    if any(call.attrs["mean"]):
        mean = _bag_mean_cotangent(cotangent, offsets, mean=call.attrs["mean"])
        cotangent = builder.emit(mean)
    source = builder.emit(_bag_source(offsets, ids, features=features))
    values = builder.emit(op.reshape(cotangent, [-1, _row(table)[0]]))  # (B * F, D)
    rows = int(table.ty.shape[0])
    if not call.attrs["weighted"]:
        return [RowSparse(ids, values, rows, source), None, None, None]
    weighted = builder.emit(_weighted_values(values, source, weights))  # (N, D)
    return [
        RowSparse(ids, weighted, rows),
        None,
        None,
        _weight_cotangent(table, ids, values, source),
    ]


defvjp("relax.sparsetrain.lookup", _lookup_vjp)
defvjp("relax.sparsetrain.embedding_bag", _bag_vjp)
