# SPDX-License-Identifier: Apache-2.0
"""The models over fields in float64 NumPy, equation by equation, one label."""

from __future__ import annotations

from itertools import combinations

import numpy as np


def logits(kind, params, config, batch):
    """Return the logits (B,) of a model's parameters, by the names of `Trainer.state_dict`."""
    if kind == "dlrm":
        return _dlrm(params, config, batch)
    fields = _fields(params, config, batch)  # (B, M, D), with first-order weights in front
    if kind == "lr":
        return fields.sum(1)[:, 0] + params["bias"]
    total, vectors = np.zeros(len(batch)), fields
    if "bias" in params:
        total, vectors = fields[:, :, 0].sum(1) + params["bias"], fields[:, :, 1:]
    flat = vectors.reshape(len(batch), -1)
    if "mlp.layers.0.weight" in params and config.get("structure") != "stacked":
        total = total + _mlp(params, "mlp", flat)[:, 0]
    return total + _OWN.get(kind, _nothing)(params, config, vectors, flat)


def _fields(params, config, batch):
    tables = [params[f"embeddings.{name}.weight"] for name in config["names"]]
    embedded = [table[ids] for table, ids in zip(tables, batch.ids.T, strict=True)]
    dense = batch.dense[:, :, None] * params["dense_fields"]
    return np.concatenate([dense, np.stack(embedded, axis=1)], axis=1)


def _linear(params, name, x):
    return x @ params[f"{name}.weight"].T + params.get(f"{name}.bias", 0)


def _mlp(params, name, x, last_relu=False):
    count = sum(key.startswith(f"{name}.layers.") and key.endswith("weight") for key in params)
    for layer in range(count):
        x = _linear(params, f"{name}.layers.{layer}", x)
        x = np.maximum(x, 0) if last_relu or layer < count - 1 else x
    return x


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _nothing(params, config, vectors, flat):
    return 0.0


def _pairs(vectors):
    return [(i, j) for i, j in combinations(range(vectors.shape[1]), 2)]


def _fm(params, config, vectors, flat):
    return sum((vectors[:, i] * vectors[:, j]).sum(1) for i, j in _pairs(vectors))


def _fwfm(params, config, vectors, flat):
    weights, total = params["pairs.weight"][0], 0.0
    # The operator's order: of each field, its products with those before it.
    places = [(i, j) for j in range(vectors.shape[1]) for i in range(j)]
    for place, (i, j) in enumerate(places):
        total = total + weights[place] * (vectors[:, i] * vectors[:, j]).sum(1)
    return total


def _dcn(params, config, vectors, flat):
    x = flat
    for layer in range(config["cross_layers"]):
        dot = x @ params[f"cross.{layer}.weight.weight"].T
        x = flat * dot + params[f"cross.{layer}.bias"] + x
    return _linear(params, "crossed", x)[:, 0]


def _dcnv2(params, config, vectors, flat):
    x = flat
    for layer in range(config["cross_layers"]):
        name = f"cross.layers.{layer}"
        if config["experts"] > 1:
            gates = _softmax(_linear(params, f"{name}.gate", x))
            low = np.tanh(_linear(params, f"{name}.v", x)).reshape(len(x), config["experts"], -1)
            mixed = np.tanh(np.einsum("bkr,krs->bks", low, params[f"{name}.c"]))
            mixed = (gates[:, :, None] * mixed).reshape(len(x), -1)
        else:
            mixed = x if config["cross_rank"] is None else _linear(params, f"{name}.v", x)
        x = flat * _linear(params, f"{name}.w", mixed) + x
    if config["structure"] == "stacked":
        return _mlp(params, "mlp", x)[:, 0]
    return _linear(params, "crossed", x)[:, 0]


def _xdeepfm(params, config, vectors, flat):
    x, sums = vectors, []
    for layer, maps in enumerate(config["cin"]):
        weight = params[f"network.layers.{layer}.weight"].reshape(maps, x.shape[1], -1)
        x = np.einsum("hij,bid,bjd->bhd", weight, x, vectors)
        sums.append(x.sum(2))
    return _linear(params, "compressed", np.concatenate(sums, axis=1))[:, 0]


def _autoint(params, config, vectors, flat):
    x, heads = vectors, config["heads"]
    for layer in range(config["attention_layers"]):
        name = f"attention.{layer}"
        query, key, value = (
            _linear(params, f"{name}.{each}", x).reshape(*x.shape[:2], heads, -1)
            for each in ("query", "key", "value")
        )
        scores = _softmax(np.einsum("bihd,bjhd->bhij", query, key))
        mixed = np.einsum("bhij,bjhd->bihd", scores, value).reshape(*x.shape[:2], -1)
        x = np.maximum(mixed + _linear(params, f"{name}.residual", x), 0)
    return _linear(params, "attended", x.reshape(len(x), -1))[:, 0]


def _finalmlp(params, config, vectors, flat):
    a, b = (_mlp(params, name, flat, last_relu=True) for name in ("first", "second"))
    heads = config["heads"]
    weight = params["fusion.weight"]  # (H, left, right)
    both = np.einsum(
        "bhl,hlr,bhr->b", a.reshape(len(a), heads, -1), weight, b.reshape(len(b), heads, -1)
    )
    return (_linear(params, "fusion.of_left", a) + _linear(params, "fusion.of_right", b))[
        :, 0
    ] + both


def _dlrm(params, config, batch):
    """With concatenation."""
    x = _mlp(params, "bottom", batch.dense, last_relu=True)
    tables = [params[f"embeddings.{name}.weight"] for name in config["names"]]
    embedded = [table[ids] for table, ids in zip(tables, batch.ids.T, strict=True)]
    return _mlp(params, "top", np.concatenate([x, *embedded], axis=1))[:, 0]


_OWN = {
    "fm": _fm,
    "fwfm": _fwfm,
    "deepfm": _fm,
    "dcn": _dcn,
    "dcnv2": _dcnv2,
    "xdeepfm": _xdeepfm,
    "autoint": _autoint,
    "finalmlp": _finalmlp,
}
