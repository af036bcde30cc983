# SPDX-License-Identifier: Apache-2.0
"""JAX's arm: one jitted step with donated parameters, gathers outside the derivative.

Differentiating through a gather would make a dense gradient of the whole table. So the looked-up
rows are an argument of the loss, and their gradient is added to the donated table by a scatter.
"""

import platform
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from harness.batches import Arrays
from harness.configs import EPSILON, LEARNING_RATES, Config
from harness.task import Task
from harness.weights import cross_layers, fill_table_, linear_layers


class Jax:
    """Float32 on XLA's CPU backend; its threads follow the cores this process may use."""

    def __init__(self, task: Task) -> None:
        tables = [_table(rows, task.config.dim, n) for n, rows in enumerate(task.config.rows)]
        params = {"dense": _dense(task.config), "tables": tables}
        slots = None if task.optimizer == "sgd" else _slots(params, task.optimizer)
        self.state = (params, slots)
        self.batches = [_arrays(arrays) for arrays in task.make_batches()]
        self._step = jax.jit(partial(_train, task.optimizer), donate_argnums=0)
        self.loss: Any = None
        self.threads = task.threads

    def step(self, number: int) -> None:
        self.state, self.loss = self._step(self.state, *self.batches[number % len(self.batches)])
        jax.block_until_ready((self.state, self.loss))

    def about(self) -> dict[str, Any]:
        return {
            "versions": {"jax": jax.__version__},
            "python": platform.python_version(),
            "threads": self.threads,
        }


def _train(optimizer: str, state: Any, dense: Any, ids: Any, labels: Any) -> tuple[Any, Any]:
    params, slots = state
    rows = jnp.stack([table[ids[f]] for f, table in enumerate(params["tables"])], axis=1)
    gradient = jax.value_and_grad(_loss, argnums=(0, 1))
    loss, (to_dense, to_rows) = gradient(params["dense"], rows, dense, labels)
    rate = LEARNING_RATES[optimizer]
    if optimizer == "sgd":
        params = {
            "dense": jax.tree.map(lambda w, g: w - rate * g, params["dense"], to_dense),
            "tables": [
                table.at[ids[f]].add(-rate * to_rows[:, f])
                for f, table in enumerate(params["tables"])
            ],
        }
        return (params, None), loss
    return _adagrad(params, slots, to_dense, ids, to_rows, rate), loss


def _adagrad(params: Any, slots: Any, to_dense: Any, ids: Any, to_rows: Any, rate: float) -> Any:
    sums = jax.tree.map(lambda s, g: s + g * g, slots["dense"], to_dense)
    dense = jax.tree.map(
        lambda w, s, g: w - rate * g / (jnp.sqrt(s) + EPSILON), params["dense"], sums, to_dense
    )
    updated = [
        _adagrad_rows(table, slot, ids[f], to_rows[:, f], rate)
        for f, (table, slot) in enumerate(zip(params["tables"], slots["tables"], strict=True))
    ]
    tables, table_sums = (list(part) for part in zip(*updated, strict=True))
    return {"dense": dense, "tables": tables}, {"dense": sums, "tables": table_sums}


def _adagrad_rows(table: Any, slot: Any, ids: Any, gradient: Any, rate: float) -> tuple[Any, Any]:
    """Sum duplicates first: the rule is not linear. `slot` is (V, D), or (V, 1) if row-wise."""
    rows, inverse = jnp.unique(ids, size=len(ids), fill_value=len(table), return_inverse=True)
    g = jax.ops.segment_sum(gradient, inverse, len(ids))  # (B, D), zeros behind the last row
    squares = g * g if slot.shape[1] > 1 else jnp.mean(g * g, axis=1, keepdims=True)
    total = slot.at[rows].get(mode="fill", fill_value=1) + squares
    change = -rate * g / (jnp.sqrt(total) + EPSILON)
    return table.at[rows].add(change, mode="drop"), slot.at[rows].add(squares, mode="drop")


def _loss(params: Any, rows: Any, dense: Any, labels: Any) -> Any:
    x = _mlp(params["bottom"], dense, last_relu=True)  # (B, D)
    vectors = jnp.concatenate([x[:, None], rows], axis=1)  # (B, F + 1, D)
    top = _cross(params["cross"], vectors) if params["cross"] else _pairs(x, vectors)
    logits = _mlp(params["top"], top, last_relu=False)[:, 0]
    return jnp.mean(jax.nn.softplus(logits) - logits * labels)


def _pairs(x: Any, vectors: Any) -> Any:
    products = jnp.einsum("bid,bjd->bij", vectors, vectors).reshape(len(x), -1)
    count = vectors.shape[1]
    i, j = np.tril_indices(count, -1)
    return jnp.concatenate([x, products[:, i * count + j]], axis=1)


def _cross(layers: Any, vectors: Any) -> Any:
    x = together = vectors.reshape(len(vectors), -1)  # (B, (F + 1) * D)
    for v, w, bias in layers:
        x = together * (x @ v @ w + bias) + x
    return x


def _mlp(layers: Any, x: Any, last_relu: bool) -> Any:
    for number, (weight, bias) in enumerate(layers, 1):
        x = x @ weight + bias
        if last_relu or number < len(layers):
            x = jax.nn.relu(x)
    return x


def _dense(config: Config) -> dict[str, Any]:
    parts = {"bottom": config.bottom_widths, "top": config.top_widths}
    cross = [tuple(map(jnp.asarray, (v.T, w.T, bias))) for v, w, bias in cross_layers(config)]
    return {"cross": cross} | {
        name: [(jnp.asarray(w.T), jnp.asarray(b)) for w, b in linear_layers(widths, name)]
        for name, widths in parts.items()
    }


def _table(rows: int, dim: int, number: int) -> Any:
    table = np.empty((rows, dim), np.float32)
    fill_table_(table, number)
    return jnp.asarray(table)


def _slots(params: Any, optimizer: str) -> Any:
    tables = params["tables"]
    if optimizer == "rowwise_adagrad":
        sums = [jnp.zeros((len(table), 1), jnp.float32) for table in tables]
    else:
        sums = [jnp.zeros_like(table) for table in tables]
    return {"dense": jax.tree.map(jnp.zeros_like, params["dense"]), "tables": sums}


def _arrays(arrays: Arrays) -> tuple[Any, Any, Any]:
    by_feature = np.ascontiguousarray(arrays.ids.T).astype(np.int32)
    return jnp.asarray(arrays.dense), jnp.asarray(by_feature), jnp.asarray(arrays.labels)
