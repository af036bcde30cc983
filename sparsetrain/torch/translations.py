# SPDX-License-Identifier: Apache-2.0
"""Translations of PyTorch operators that TVM's importer lacks or silently changes.

Lookups become this package's lookups. The importer removes dropout; here dropout draws its mask
from the step's random key. Nodes without a translation are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tvm import relax
from tvm.relax import op

from sparsetrain.ad import dropout
from sparsetrain.embedding import embedding_bag, lookup
from sparsetrain.errors import ConfigError

DROPOUT_INPUTS = ("dropout_key", "dropout_first_row")  # arguments of the exported loss
MODES = ("sum", "mean")

# (node, importer) -> expression; the importer's `env` maps nodes to their translations.
Translation = Callable[[torch.fx.Node, Any], Any]


def _arguments(node: torch.fx.Node, importer: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a node by name, with nodes replaced by their translations."""
    given = dict(zip(defaults, node.args, strict=False)) | node.kwargs
    return {
        name: importer.env[value] if isinstance(value, torch.fx.Node) else value
        for name, value in (defaults | given).items()
    }


def _embedding(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Return the looked-up rows; the row `padding_idx` gets no gradient."""
    defaults = {"weight": None, "ids": None, "padding_idx": -1, "by_freq": False, "sparse": False}
    given = _arguments(node, importer, defaults)
    _refuse_by_freq(given)
    emit, ids = importer.block_builder.emit, given["ids"]
    rows = emit(lookup(given["weight"], ids))
    if given["padding_idx"] < 0:
        return rows
    is_padding = op.equal(ids, relax.const(given["padding_idx"], ids.ty.dtype.dtype))
    return emit(op.where(op.expand_dims(is_padding, -1), op.grad.no_grad(rows), rows))


def _bag(node: torch.fx.Node, importer: Any) -> tuple[relax.Expr]:
    """Return pooled rows (B, D) alone, since nothing uses PyTorch's other results."""
    defaults = {"weight": None, "ids": None, "offsets": None, "by_freq": False, "mode": 0}
    defaults |= {"sparse": False, "weights": None, "include_last_offset": False, "padding_idx": -1}
    given = _arguments(node, importer, defaults)
    _refuse_by_freq(given)
    emit, ids, weights = importer.block_builder.emit, given["ids"], given["weights"]
    if given["mode"] >= len(MODES):
        raise ConfigError("from_torch: EmbeddingBag with mode='max' has no translation")
    if given["padding_idx"] >= 0:
        if given["mode"]:
            raise ConfigError("from_torch: mode='mean' with padding_idx has no translation")
        counts = op.not_equal(ids, relax.const(given["padding_idx"], ids.ty.dtype.dtype))
        counts = emit(op.astype(counts, given["weight"].ty.dtype.dtype))
        weights = counts if weights is None else emit(op.multiply(weights, counts))
    offsets = emit(op.astype(given["offsets"], "int64"))
    if not given["include_last_offset"]:
        count = ids.ty.shape[0]
        end = emit(op.arange(count, count + 1, 1, "int64"))
        offsets = emit(op.concat([offsets, end], axis=0))
    pooled = emit(embedding_bag(given["weight"], ids, offsets, weights, mode=MODES[given["mode"]]))
    return (emit(op.squeeze(pooled, [1])),)


def _refuse_by_freq(given: dict[str, Any]) -> None:
    if given["by_freq"]:
        raise ConfigError("from_torch: scale_grad_by_freq has no translation")


def _dropout(node: torch.fx.Node, importer: Any) -> tuple[relax.Expr]:
    """Apply dropout by the step's random key; return no mask, since nothing uses PyTorch's."""
    x, rate, training = importer.env[node.args[0]], float(node.args[1]), node.args[2]
    if not training or not rate:
        return (x,)
    inputs = {n.name: n for n in node.graph.nodes if n.op == "placeholder"}
    keys = [importer.env[inputs[name]] for name in DROPOUT_INPUTS]
    layer = [n for n in node.graph.nodes if n.target is node.target].index(node)
    return (importer.block_builder.emit(dropout(x, *keys, rate=rate, layer=layer)),)


def _detached(node: torch.fx.Node, importer: Any) -> relax.Expr:
    return importer.block_builder.emit(op.grad.no_grad(importer.env[node.args[0]]))


def _convolution(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convolve (B, C, L) by one matrix product; x is sliced for each tap, slices side by side."""
    defaults: dict[str, Any] = dict.fromkeys(("x", "weight", "bias", "stride", "padding"))
    defaults |= {"dilation": None, "transposed": False, "output_padding": None, "groups": 1}
    given = _arguments(node, importer, defaults)
    emit, x, weight = importer.block_builder.emit, given["x"], given["weight"]
    if len(given["stride"]) > 1 or given["transposed"] or given["groups"] > 1:
        raise ConfigError(
            f"from_torch: {node.name!r}, {node.target}: only Conv1d with groups=1 is supported"
        )
    (stride,), (padding,), (dilation,) = (given[n] for n in ("stride", "padding", "dilation"))
    outputs, _, taps = (int(size) for size in weight.ty.shape)
    if padding:
        x = emit(op.nn.pad(x, [0, 0, 0, 0, padding, padding]))
    reach = x.ty.shape[2] - dilation * (taps - 1)
    begins = (dilation * tap for tap in range(taps))
    slices = [emit(op.strided_slice(x, [2], [b], [b + reach], [stride])) for b in begins]
    windows = emit(op.permute_dims(emit(op.concat(slices, 1)), [0, 2, 1]))  # (B, L, taps * C)
    flat = emit(op.reshape(emit(op.permute_dims(weight, [2, 1, 0])), (-1, outputs)))
    found = emit(op.permute_dims(emit(op.matmul(windows, flat)), [0, 2, 1]))
    if given["bias"] is None:
        return found
    return emit(op.add(found, emit(op.reshape(given["bias"], (outputs, 1)))))


def _largest(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Return maxima over axes; equal maxima share the gradient, as in PyTorch."""
    given = _arguments(node, importer, {"x": None, "dim": (), "keepdim": False})
    axes = list(given["dim"]) or None
    return importer.block_builder.emit(op.max(given["x"], axes, given["keepdim"]))


def _first_largest(node: torch.fx.Node, importer: Any) -> tuple[relax.Expr, relax.Expr]:
    """Return maxima over an axis, and indices; the first of equal maxima gets the gradient."""
    given = _arguments(node, importer, {"x": None, "dim": 0, "keepdim": False})
    emit, x, axis, keepdim = importer.block_builder.emit, *given.values()
    place = emit(op.argmax(x, axis, True))
    axis %= len(x.ty.shape)
    shape = [1] * axis + [-1] + [1] * (len(x.ty.shape) - axis - 1)
    places = emit(op.reshape(emit(op.arange(0, x.ty.shape[axis], 1, "int64")), shape))
    chosen = emit(op.where(emit(op.equal(places, place)), x, relax.const(0, x.ty.dtype.dtype)))
    values = emit(op.sum(chosen, axis, keepdim))
    return values, place if keepdim else emit(op.squeeze(place, [axis]))


TRANSLATIONS: dict[str, Translation] = {
    "convolution.default": _convolution,
    "conv1d.default": _convolution,
    "amax.default": _largest,
    "max.dim": _first_largest,
    "embedding.default": _embedding,
    "_embedding_bag.default": _bag,
    "_embedding_bag_forward_only.default": _bag,
    "native_dropout.default": _dropout,
    "detach.default": _detached,
}


def refuse_untranslatable(program: torch.export.ExportedProgram) -> None:
    """Refuse nodes that TVM's importer would change silently.

    Raises
    ------
    ConfigError
        If there is such a node; the message names its operator or buffer.
    """
    written = program.graph_signature.buffers_to_mutate.values()
    for buffer in written:
        name = buffer.removeprefix("module.")
        layer = name.rpartition(".")[0]
        raise ConfigError(
            f"from_torch: buffer {name!r} changes in every step, as in batch norm in training "
            f"mode: call module.{layer}.eval() first"
        )
    for node in program.graph.nodes:
        drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if drawn and node.target.__name__ not in TRANSLATIONS:
            raise ConfigError(
                f"from_torch: {node.target} draws random numbers and has no translation"
            )


def offsets_of(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Map inputs that are offsets of bags to the inputs that hold the ids.

    Raises
    ------
    ConfigError
        If offsets are computed from inputs, since nothing would check them.
    """
    found = {}
    for node in program.graph.nodes:
        if getattr(node.target, "__name__", "").startswith("_embedding_bag"):
            ids, offsets = node.args[1:3]
            if offsets.op == "placeholder" and ids.op == "placeholder":
                found[offsets.name] = ids.name
            elif not offsets.target.__name__.startswith("arange"):
                raise ConfigError(
                    "from_torch: ids and offsets of an EmbeddingBag must be inputs of the module"
                )
    return found
