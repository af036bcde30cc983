# SPDX-License-Identifier: Apache-2.0
"""The loop that a user of PyTorch writes for a table: embeddings, two layers, Adagrad, one epoch.

Tables are `nn.EmbeddingBag(sparse=True)`. Batches, rate and width of vectors are those of
`ClickClassifier`, which do well here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

DIM, BATCH, LR, HIDDEN, RARE = 16, 128, 0.02, 64, 2
Ids = tuple[torch.Tensor, torch.Tensor]  # of all rows, and where each row's begin


class _Net(nn.Module):
    def __init__(self, tables: list[int], numbers: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True) for rows in tables
        )
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.01)
        width = len(tables) * DIM + numbers
        self.layers = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, numbers: torch.Tensor, ids: list[Ids]) -> torch.Tensor:
        vectors = [table(*each) for table, each in zip(self.tables, ids, strict=True)]
        logits: torch.Tensor = self.layers(torch.cat([numbers, *vectors], dim=1))
        return logits[:, 0]


def fit(frame: pd.DataFrame, labels: np.ndarray) -> Callable[[pd.DataFrame], np.ndarray]:
    """Train for one epoch; return the scores of other rows."""
    torch.manual_seed(0)
    encode, tables = _learn(frame)
    numbers, ids = encode(frame)
    net, wanted = _Net(tables, numbers.shape[1]), torch.tensor(labels, dtype=torch.float32)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=LR)
    order = torch.randperm(len(frame))
    for rows in order.split(BATCH):
        optimizer.zero_grad()
        logits = net(numbers[rows], [_take(each, rows) for each in ids])
        nn.functional.binary_cross_entropy_with_logits(logits, wanted[rows]).backward()
        optimizer.step()

    @torch.no_grad()
    def score(other: pd.DataFrame) -> np.ndarray:
        numbers, ids = encode(other)
        chunks = torch.arange(len(other)).split(4096)
        scored = [net(numbers[rows], [_take(each, rows) for each in ids]) for rows in chunks]
        return torch.cat(scored).numpy()

    return score


def _take(ids: Ids, rows: torch.Tensor) -> Ids:
    """The ids of some rows."""
    values, begins = ids
    if len(values) == len(begins) - 1:  # one each
        return values[rows], torch.arange(len(rows))
    lengths = (begins[1:] - begins[:-1])[rows]
    ends = lengths.cumsum(0)
    shift = (begins[rows] - ends + lengths).repeat_interleave(lengths)
    return values[torch.arange(int(ends[-1])) + shift], ends - lengths


def _learn(frame: pd.DataFrame) -> tuple[Callable[[pd.DataFrame], Any], list[int]]:
    """Return what makes tensors of a frame, and the rows of the tables."""
    known: dict[str, pd.Index] = {}
    scales: dict[str, tuple[float, float]] = {}
    for name, column in _parts(frame).items():
        if column.dtype.kind == "f" or _is_count(str(name), column):
            values = _smooth(column)
            scales[name] = float(np.nanmean(values)), float(np.nanstd(values)) or 1.0
        else:
            counts = column.explode().value_counts()
            known[name] = counts.index[counts >= RARE]

    def encode(other: pd.DataFrame) -> tuple[torch.Tensor, list[Ids]]:
        parts = _parts(other)
        numbers = [(_smooth(parts[n]) - mean) / scale for n, (mean, scale) in scales.items()]
        dense = np.nan_to_num(np.stack(numbers, axis=1)) if numbers else np.zeros((len(other), 0))
        ids = []
        for name, values in known.items():
            column = parts[name]
            lengths = np.ones(len(other), np.int64)
            if column.dtype == object and isinstance(column.iloc[0], np.ndarray):
                lengths = column.str.len().to_numpy(np.int64)
                column = np.concatenate(column.to_numpy())
            begins = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]))
            ids.append((torch.tensor(values.get_indexer(column) + 1), begins))
        return torch.tensor(dense, dtype=torch.float32), ids

    return encode, [len(values) + 1 for values in known.values()]


def _parts(frame: pd.DataFrame) -> dict[str, pd.Series]:
    parts = {}
    for name in frame:
        if frame[name].dtype.kind == "M":
            parts[f"{name} hour"] = frame[name].dt.hour
            parts[f"{name} weekday"] = frame[name].dt.weekday
        else:
            parts[name] = frame[name]
    return parts


def _is_count(name: str, column: pd.Series) -> bool:
    return column.dtype.kind == "i" and not name.endswith("_id") and column.nunique() > 50


def _smooth(column: pd.Series) -> np.ndarray:
    values = column.to_numpy(np.float64)
    return np.sign(values) * np.log1p(np.abs(values))
