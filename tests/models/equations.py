# SPDX-License-Identifier: Apache-2.0
"""Models over fields and their equations, for one label in float64 NumPy."""

from __future__ import annotations

from itertools import combinations

import numpy as np


def over_fields(own):
    """The equation of a `FieldModel`: first-order weights, an MLP beside the rest, and its own."""

    def equation(params, config, batch):
        total, vectors = np.zeros(len(batch)), _fields(params, config, batch)
        if "bias" in params:  # first-order weights are in front
            total = sum(field[:, 0] for field in vectors) + params["bias"]
            vectors = [field[:, 1:] for field in vectors]
        flat = np.concatenate(vectors, axis=1)
        if len({field.shape for field in vectors}) == 1:
            vectors = np.stack(vectors, axis=1)  # (B, M, D)
        if "mlp.layers.0.weight" in params and config.get("structure") != "stacked":
            total = total + _mlp(params, "mlp", flat)[:, 0]
        return total + own(params, config, vectors, flat)

    return equation


def _fields(params, config, batch):
    dense = batch.dense[:, :, None] * params["dense_fields"]
    return [*dense.transpose(1, 0, 2), *_embedded(params, config, batch)]


def _embedded(params, config, batch):
    """The vector of each id or bag, (B, w), or (B, D) where there is a projection to that."""
    names, found = config["names"], []
    for name, ids in zip(names, _columns(batch), strict=True):
        table = params[f"embeddings.{name}.weight"]
        if isinstance(ids, np.ndarray):
            found.append(table[ids])
        else:
            found.append(_pooled(table, ids, _of(config["pooling"], name)))
    weights = "bias" in params
    projections = {
        key: value for key, value in params.items() if key.startswith("projections.width")
    }
    for place, vectors in enumerate(found):
        projection = projections.get(f"projections.width{vectors.shape[1] - weights}.weight")
        if projection is not None:
            rest = vectors[:, weights:] @ projection.T
            found[place] = np.concatenate([vectors[:, :weights], rest], axis=1)
    return found


def _columns(batch):
    return batch.ids.T if isinstance(batch.ids, np.ndarray) else batch.ids


def _of(values, name):
    return values.get(name, values["*"]) if isinstance(values, dict) else values


def _pooled(table, bags, pooling):
    ends = bags.offsets
    each = [table[bags.ids[a:b]] for a, b in zip(ends[:-1], ends[1:], strict=True)]
    return np.stack([bag.sum(0) / (max(len(bag), 1) if pooling == "mean" else 1) for bag in each])


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
    x = _mlp(params, "bottom", batch.dense, last_relu=True)
    embedded = _embedded(params, config, batch)
    if config["interaction"] == "dot":
        each = [x, *embedded]
        dots = [(each[i] * each[j]).sum(1) for i in range(len(each)) for j in range(i)]
        return _mlp(params, "top", np.concatenate([x, np.stack(dots, axis=1)], axis=1))[:, 0]
    x0 = x = np.concatenate([x, *embedded], axis=1)
    for layer in range(config["cross_layers"] or 0):
        name = f"interaction.layers.{layer}"
        x = x0 * _linear(params, f"{name}.w", _linear(params, f"{name}.v", x)) + x
    return _mlp(params, "top", x)[:, 0]


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
    "dlrm, dot": ({"bottom": (5,), "top": (6,)}, _dlrm),
    "dlrm, cross": ({"interaction": "cross", "bottom": (5,), "top": (6,)}, _dlrm),
}
