# SPDX-License-Identifier: Apache-2.0
"""PyTorch's arms: an ``EmbeddingBag(sparse=True)`` for each table, `torch.optim` for everything."""

import platform
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from harness.batches import Arrays
from harness.task import Task
from harness.torch_dense import DenseDLRM, dense_optimizer
from harness.weights import fill_table_

# Said once by every sparse Adagrad step; it asks for a choice between speed and checks.
warnings.filterwarnings("ignore", message="Sparse invariant checks")


class Torch:
    """Eager PyTorch in float32, as the reference DLRM is written."""

    autocast = False

    def __init__(self, task: Task, device: str = "cpu") -> None:
        torch.set_num_threads(task.threads)
        self.device = device
        self.dense = DenseDLRM(task.config).to(device)
        self.tables = nn.ModuleList(
            _table(rows, task.config.dim, number) for number, rows in enumerate(task.config.rows)
        )
        self.tables.to(device)
        self.criterion = nn.BCEWithLogitsLoss()
        parameters = (list(part.parameters()) for part in (self.dense, self.tables))
        self.optimizers = [dense_optimizer(task.optimizer, part) for part in parameters]
        self.offsets = torch.arange(task.batch, device=device)
        self.batches = [_tensors(arrays, device) for arrays in task.make_batches()]
        self.loss: Any = None

    def step(self, number: int) -> None:
        dense, ids, labels = self.batches[number % len(self.batches)]
        bags = [table(column, self.offsets) for table, column in zip(self.tables, ids, strict=True)]
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            logits = self.dense(dense, bags)
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


def _table(rows: int, dim: int, number: int) -> nn.EmbeddingBag:
    weight = torch.empty(rows, dim)
    fill_table_(weight.numpy(), number)
    return nn.EmbeddingBag(rows, dim, mode="sum", sparse=True, _weight=weight)


def _tensors(arrays: Arrays, device: str) -> tuple[Tensor, list[Tensor], Tensor]:
    columns = [torch.from_numpy(column.copy()).to(device) for column in arrays.ids.T]
    dense, labels = (torch.from_numpy(array).to(device) for array in (arrays.dense, arrays.labels))
    return dense, columns, labels
