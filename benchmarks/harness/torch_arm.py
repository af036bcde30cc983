# SPDX-License-Identifier: Apache-2.0
"""PyTorch's arms: one ``Embedding(sparse=True)`` of all tables, and `torch.optim`, fused.

One lookup with offsets in place of an ``EmbeddingBag`` for each table is up to twice as fast. The
ids are shifted before the step, as a loader would.
"""

import platform
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.batches import Arrays
from harness.configs import Config
from harness.task import Task
from harness.torch_dense import DenseDLRM, make_optimizer
from harness.weights import fill_table_

# Said once by every sparse Adagrad step; it asks for a choice between speed and checks.
warnings.filterwarnings("ignore", message="Sparse invariant checks")


class Torch:
    """Eager PyTorch in float32."""

    autocast = False

    def __init__(self, task: Task, device: str = "cpu") -> None:
        torch.set_num_threads(task.threads)
        self.device = device
        self.dense = DenseDLRM(task.config).to(device)
        self.table = _tables(task.config).to(device)
        self.criterion = nn.BCEWithLogitsLoss()
        self.optimizers = [
            make_optimizer(task.optimizer, [*self.dense.parameters()], fused=device == "cpu"),
            make_optimizer(task.optimizer, [*self.table.parameters()]),
        ]
        first = np.cumsum([0, *task.config.rows[:-1]])
        self.batches = [_tensors(arrays, first, device) for arrays in task.make_batches()]
        self.loss: Any = None

    def step(self, number: int) -> None:
        dense, ids, labels = self.batches[number % len(self.batches)]
        embeddings = self.table(ids).flatten(1)  # (B, F * D)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            logits = self.dense(dense, [embeddings])
        loss = self.criterion(logits.float(), labels)
        loss.backward()
        self.loss = loss.detach()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def about(self) -> dict[str, Any]:
        return about_torch()


class TorchHalf(Torch):
    """The same under autocast to bfloat16; parameters and their gradients stay float32."""

    autocast = True


class TorchCompiled(Torch):
    """The same with its dense part compiled by `torch.compile`; tables stay as they are."""

    def __init__(self, task: Task, device: str = "cpu") -> None:
        super().__init__(task, device)
        self.dense.compile()


def about_torch(**versions: str) -> dict[str, Any]:
    """Versions and threads."""
    return {
        "versions": {"torch": torch.__version__, **versions},
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


def _tables(config: Config) -> nn.Embedding:
    """All tables, one below the other."""
    weight = torch.empty(sum(config.rows), config.dim)
    for number, table in enumerate(weight.split(list(config.rows))):
        fill_table_(table.numpy(), number)
    return nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)


def _tensors(arrays: Arrays, first: np.ndarray, device: str) -> list[Tensor]:
    """Dense values, ids as rows of the one table, and labels."""
    given = arrays.dense, arrays.ids + first, arrays.labels
    return [torch.from_numpy(array).to(device) for array in given]
