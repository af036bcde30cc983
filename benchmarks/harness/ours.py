# SPDX-License-Identifier: Apache-2.0
"""sparsetrain's arm: `Trainer.step` on prepared batches."""

import platform
import time
from contextlib import ExitStack
from typing import Any

import tvm

import sparsetrain as st
from harness.batches import Arrays
from harness.configs import EPSILON, LEARNING_RATES, Config
from harness.task import Refused, Task
from harness.weights import cross_layers, fill_table_, linear_layers
from sparsetrain import runtime
from sparsetrain.errors import ConfigError
from sparsetrain.runtime.tensors import editable_numpy


class Ours:
    """A trainer with the weights that every arm starts from."""

    dropout = 0.0

    def __init__(self, task: Task) -> None:
        try:
            self.trainer = build_trainer(
                task.config,
                task.optimizer,
                precision=task.precision,
                accumulate=task.accumulate,
                dropout=self.dropout,
            )
        except ConfigError as error:
            raise Refused(str(error)) from None
        began = time.perf_counter()
        self.trainer.compile()
        self.compile_seconds = time.perf_counter() - began
        self.batches = [as_batch(arrays) for arrays in task.make_batches()]
        self.loss: Any = None

    def step(self, number: int) -> None:
        self.loss = self.trainer.step(self.batches[number % len(self.batches)])

    def about(self) -> dict[str, Any]:
        return {
            "versions": {"sparsetrain": st.__version__, "tvm": tvm.__version__},
            "python": platform.python_version(),
            "threads": runtime.num_threads(),
            "compile_s": self.compile_seconds,
        }


class OursWithDropout(Ours):
    """The same with dropout between the layers of both MLPs."""

    dropout = 0.2


def build_trainer(
    config: Config,
    optimizer: str,
    encoder: Any = None,
    target: str = "cpu",
    precision: Any = "float32",
    accumulate: int = 1,
    dropout: float = 0.0,
) -> "st.Trainer":
    """A trainer of this model and optimizer, with the common weights."""
    extra = {} if optimizer == "sgd" else {"eps": EPSILON}
    rule = getattr(st.optim, optimizer)(LEARNING_RATES[optimizer], **extra)
    model = st.models.DLRM(
        rows=config.rows, dim=config.dim, bottom=config.bottom, top=config.top,
        num_dense=config.num_dense, dropout=dropout, **config.interaction,
    )  # fmt: skip
    trainer = st.Trainer(
        model, rule, encoder=encoder, target=target, precision=precision, accumulate=accumulate
    )
    _fill_(trainer, config)
    return trainer


def as_batch(arrays: Arrays) -> "st.data.Batch":
    """The arrays as the value that `Trainer.step` takes."""
    return st.data.Batch(arrays.dense, arrays.ids, arrays.labels)


def _fill_(trainer: Any, config: Config) -> None:
    with ExitStack() as stack:
        views = {
            name: stack.enter_context(editable_numpy(tensor))
            for name, tensor in trainer.params.items()
        }
        _fill_views_(views, trainer, config)


def _fill_views_(views: dict[str, Any], trainer: Any, config: Config) -> None:
    for storage, tables in trainer.model.tables().items():
        for number, rows in enumerate(tables.values()):
            fill_table_(views[storage][rows], number)
    for part, widths in (("bottom", config.bottom_widths), ("top", config.top_widths)):
        for layer, (weight, bias) in enumerate(linear_layers(widths, part)):
            views[f"{part}.layers.{layer}.weight"][...] = weight
            views[f"{part}.layers.{layer}.bias"][...] = bias
    for layer, (v, w, bias) in enumerate(cross_layers(config)):
        name = f"interaction.layers.{layer}"
        parts = {"v.weight": v, "w.weight": w, "w.bias": bias}
        for part, array in parts.items():
            views[f"{name}.{part}"][...] = array
