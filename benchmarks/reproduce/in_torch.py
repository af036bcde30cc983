# SPDX-License-Identifier: Apache-2.0
"""The same protocol in PyTorch: same encoded rows, same initial weights, its own order of rows."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import sparsetrain as st
from tests.peers.torch_models import TorchModel


def train(data: Any, setting: Any, prepared: Any, seed: int) -> dict[str, Any]:
    """Train by the protocol of `data`; return test scores, epochs, seconds and rows/s."""
    paths, encoder = prepared
    splits = {name: _rows(path, encoder) for name, path in paths.items()}
    begin = perf_counter()
    torch.manual_seed(seed)
    trainer = st.Trainer(data.model_of(setting, encoder), st.optim.sgd(0.1), seed=seed)
    data.start_(trainer, seed)
    peer = TorchModel(setting.kind, trainer.state_dict(), trainer.model.config())
    decayed = [p for n, p in peer.named_parameters() if n.startswith("embeddings")]
    optimizer = torch.optim.Adam(peer.parameters(), data.LR)
    best, weights, since, trained, epochs = -1.0, {}, 0, 0.0, 0
    while epochs < data.EPOCHS and since < 2:
        epochs += 1
        started = perf_counter()
        peer.train()
        for part in torch.randperm(len(splits["train"][1])).split(data.BATCH):
            ids, labels = (each[part] for each in splits["train"])
            loss = F.binary_cross_entropy_with_logits(peer(_ones(ids), ids), labels)
            optimizer.zero_grad()
            (loss + setting.l2 / 2 * sum((table**2).sum() for table in decayed)).backward()
            torch.nn.utils.clip_grad_norm_(peer.parameters(), data.CLIP)
            optimizer.step()
        trained += perf_counter() - started
        found = _scores(peer, *splits["valid"])["auc"]
        since = 0 if found > best else since + 1
        if since == 0:
            best, weights = found, {n: t.clone() for n, t in peer.state_dict().items()}
        else:
            for group in optimizer.param_groups:
                group["lr"] *= 0.1
    seconds = perf_counter() - begin
    peer.load_state_dict(weights)
    rows = epochs * len(splits["train"][1])
    how = {"epochs": epochs, "seconds": seconds, "rows_per_s": rows / trained}
    return {**_scores(peer, *splits["test"]), **how}


def _rows(path: str, encoder: Any) -> tuple[torch.Tensor, torch.Tensor]:
    batches = [*st.data.Dataset(path, encoder).batches(65_536)]
    ids = np.concatenate([batch.ids for batch in batches]).astype(np.int64)
    labels = np.concatenate([batch.labels for batch in batches]).astype(np.float32)
    return torch.tensor(ids), torch.tensor(labels)


def _ones(ids: torch.Tensor) -> torch.Tensor:
    """The dense column of a model without dense features."""
    return torch.ones(len(ids), 1)


@torch.no_grad()
def _scores(peer: TorchModel, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    peer.eval()
    logits = torch.cat([peer(_ones(part), part) for part in ids.split(65_536)])
    metrics = st.metrics.ClickMetrics()
    metrics.update(logits.numpy(), labels.numpy())
    found = metrics.result()
    return {"auc": float(found["auc"]), "logloss": float(found["logloss"])}
