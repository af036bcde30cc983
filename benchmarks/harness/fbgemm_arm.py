# SPDX-License-Identifier: Apache-2.0
"""FBGEMM's arms: its table-batched embeddings with the fused optimizer, PyTorch for the rest."""

from typing import Any

import fbgemm_gpu
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn

from harness.batches import Arrays
from harness.configs import EPSILON, LEARNING_RATES, Config
from harness.task import Task
from harness.torch_arm import about_torch
from harness.torch_dense import DenseDLRM, make_optimizer
from harness.weights import fill_table_

_RULES = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


class Fbgemm:
    """Tables are updated inside ``backward``; the optimizer steps over the dense part alone."""

    half = False

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(task.threads)
        self.dense = DenseDLRM(task.config)
        self.tables = _tables(task.config, task.optimizer, self.half)
        self.criterion = nn.BCEWithLogitsLoss()
        self.optimizer = make_optimizer(task.optimizer, [*self.dense.parameters()], fused=True)
        self.offsets = torch.arange(task.batch * task.config.features + 1)
        self.batches = [_tensors(arrays) for arrays in task.make_batches()]
        self.loss: Any = None

    def step(self, number: int) -> None:
        dense, ids, labels = self.batches[number % len(self.batches)]
        embeddings = self.tables(ids, self.offsets)  # (B, F * D)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            logits = self.dense(dense, [embeddings])
        loss = self.criterion(logits.float(), labels)
        loss.backward()
        self.loss = loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def about(self) -> dict[str, Any]:
        return about_torch(fbgemm_gpu=fbgemm_gpu.__version__)


class FbgemmHalf(Fbgemm):
    """Tables stored in float16, rounded stochastically; the dense part under bfloat16 autocast."""

    half = True


def _tables(config: Config, optimizer: str, half: bool) -> SplitTableBatchedEmbeddingBagsCodegen:
    place = (EmbeddingLocation.HOST, ComputeDevice.CPU)
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, config.dim, *place) for rows in config.rows],
        optimizer=_RULES[optimizer],
        learning_rate=LEARNING_RATES[optimizer],
        eps=EPSILON,
        pooling_mode=PoolingMode.SUM,
        weights_precision=SparseType.FP16 if half else SparseType.FP32,
        device="cpu",
    )
    for number, weight in enumerate(tables.split_embedding_weights()):
        fill_table_(weight.detach().numpy(), number)
    return tables


def _tensors(arrays: Arrays) -> tuple[Tensor, Tensor, Tensor]:
    by_feature = torch.from_numpy(arrays.ids.T.ravel())
    return torch.from_numpy(arrays.dense), by_feature, torch.from_numpy(arrays.labels)
