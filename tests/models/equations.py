# SPDX-License-Identifier: Apache-2.0
"""Models over fields and their equations, for one label in float64 NumPy."""

from __future__ import annotations

from itertools import combinations

import numpy as np


def over_fields(own):
    """The equation of a `FieldModel`: first-order weights, an MLP beside the rest, and its own."""

    def equation(params, config, batch):
        fields = _fields(params, config, batch)  # (B, M, D), with first-order weights in front
        total, vectors = np.zeros(len(batch)), fields
        if "bias" in params:
            total, vectors = fields[:, :, 0].sum(1) + params["bias"], fields[:, :, 1:]
        flat = vectors.reshape(len(batch), -1)
        if "mlp.layers.0.weight" in params and config.get("structure") != "stacked":
            total = total + _mlp(params, "mlp", flat)[:, 0]
        return total + own(params, config, vectors, flat)

    return equation


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


# Kind in `MODELS`, perhaps with a variant after a comma -> its options and its equation.
CASES = {
    "lr": ({}, over_fields(_nothing)),
    "fm": ({}, over_fields(_fm)),
    "fwfm": ({}, over_fields(_fwfm)),
    "widedeep": ({"hidden": (6,)}, over_fields(_nothing)),
    "deepfm": ({"hidden": (6,)}, over_fields(_fm)),
    "dcn": ({"hidden": (6,), "cross_layers": 2}, over_fields(_dcn)),
    "dcnv2": ({"hidden": (6,), "cross_layers": 2}, over_fields(_dcnv2)),
    "dcnv2, stacked, low rank": (
        {"hidden": (6,), "cross_layers": 2, "cross_rank": 3, "structure": "stacked"},
        over_fields(_dcnv2),
    ),
    "dcnv2, mixture": (
        {"hidden": (6,), "cross_layers": 1, "cross_rank": 3, "experts": 2},
        over_fields(_dcnv2),
    ),
    "xdeepfm": ({"hidden": (6,), "cin": (3, 2)}, over_fields(_xdeepfm)),
    "autoint": ({"hidden": (6,), "attention_width": 3}, over_fields(_autoint)),
    "finalmlp": ({"hidden": (6,), "hidden2": (4,), "heads": 2}, over_fields(_finalmlp)),
    "dlrm, concatenation": ({"interaction": "concat", "bottom": (5,), "top": (6,)}, _dlrm),
}
