# SPDX-License-Identifier: Apache-2.0
"""PyTorch's and FBGEMM's updates of one table: a script for an interpreter that has them.

Nothing of this package imports it, and it imports nothing of this package. Requests and replies are
JSON, one a line; ids come in a file. Timed is what follows a lookup: ``backward`` from the
cotangent to the gradient, and the optimizer's step. The forward pass is not.
"""

import importlib
import json
import os
import sys
import time

NEEDS = {"torch-dense": "torch", "torch-sparse": "torch", "fbgemm": "fbgemm_gpu"}
LEARNING_RATE = 0.01


def main() -> None:
    """Say which arms there are, then answer one order after the other until the input ends."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    replies.write(json.dumps({arm: missing(module) for arm, module in NEEDS.items()}) + "\n")
    for line in sys.stdin:
        replies.write(json.dumps(measured(**json.loads(line))) + "\n")


def missing(module: str) -> str | None:
    """Why a module cannot be imported, or None if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken installation raises whatever it likes
        return f"{type(error).__name__}: {error}"
    return None


def measured(arm: str, case: dict, ids: str, warm: int, least: int, seconds: float) -> dict:
    """Seconds of each step that counts."""
    import numpy
    import torch

    torch.set_num_threads(case["threads"])
    steps = torch.from_numpy(numpy.load(ids).astype("int64"))
    step = ARMS[arm](case)
    generator = torch.Generator().manual_seed(0)
    bags = case["lookups"] // case["pooling"]
    cotangents = [torch.randn(bags, case["width"], generator=generator) for _ in range(8)]
    taken: list[float] = []
    for number, rows in enumerate(steps):
        taken.append(step(rows, cotangents[number % 8]))
        if number + 1 - warm >= least and sum(taken[warm:]) > seconds:
            break
    return {"seconds": taken[warm:]}


def torch_dense(case: dict) -> object:
    """A dense gradient, a dense optimizer."""
    return _torch(case, sparse=False)


def torch_sparse(case: dict) -> object:
    """A sparse COO gradient and the optimizers that take one."""
    return _torch(case, sparse=True)


def _torch(case: dict, sparse: bool):
    import torch

    shape = case["rows"], case["width"]
    table = torch.nn.EmbeddingBag(*shape, mode="sum", sparse=sparse, _weight=torch.zeros(shape))
    lr = LEARNING_RATE
    optimizers = {
        "sgd": lambda p: torch.optim.SGD(p, lr),
        "momentum": lambda p: torch.optim.SGD(p, lr, momentum=0.9),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr),
        "adam": lambda p: (torch.optim.SparseAdam if sparse else torch.optim.Adam)(p, lr),
    }
    optimizer = optimizers[case["formula"]](list(table.parameters()))
    offsets = torch.arange(0, case["lookups"], case["pooling"])

    def step(rows, cotangent) -> float:
        read = table(rows, offsets)
        began = time.perf_counter()
        read.backward(cotangent)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - began

    return step


def fbgemm(case: dict):
    """The optimizer is fused into ``backward``."""
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    rules = {
        "sgd": EmbOptimType.EXACT_SGD,
        "adagrad": EmbOptimType.EXACT_ADAGRAD,
        "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    }
    place = EmbeddingLocation.HOST, ComputeDevice.CPU
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(case["rows"], case["width"], *place)],
        optimizer=rules[case["formula"]],
        learning_rate=LEARNING_RATE,
        pooling_mode=PoolingMode.SUM,
        device="cpu",
    )
    table.split_embedding_weights()[0].detach().zero_()
    offsets = torch.arange(0, case["lookups"] + 1, case["pooling"])

    def step(rows, cotangent) -> float:
        read = table(rows, offsets)
        began = time.perf_counter()
        read.backward(cotangent)
        return time.perf_counter() - began

    return step


ARMS = {"torch-dense": torch_dense, "torch-sparse": torch_sparse, "fbgemm": fbgemm}

if __name__ == "__main__":
    main()
