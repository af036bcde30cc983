# SPDX-License-Identifier: Apache-2.0
"""A batch as micro-batches: consecutive rows, views of the same arrays."""

from __future__ import annotations

from collections.abc import Iterator

from sparsetrain.data.batch import Batch
from sparsetrain.data.ragged import Ragged


def micro_batches(batch: Batch, parts: int) -> Iterator[Batch]:
    """Yield up to `parts` batches of nearly equal size that hold the rows in order."""
    rows = len(batch)
    edges = [rows * part // parts for part in range(parts + 1)]
    for begin, end in zip(edges, edges[1:], strict=False):
        if begin < end:
            yield _rows(batch, begin, end)


def _rows(batch: Batch, begin: int, end: int) -> Batch:
    labels, weights = (
        None if array is None else array[begin:end] for array in (batch.labels, batch.weights)
    )
    if isinstance(batch.ids, tuple):
        bags = tuple(_bags(feature, begin, end) for feature in batch.ids)
        return Batch._trusted(batch.dense[begin:end], bags, labels, weights)
    return Batch._trusted(batch.dense[begin:end], batch.ids[begin:end], labels, weights)


def _bags(feature: Ragged, begin: int, end: int) -> Ragged:
    first, last = int(feature.offsets[begin]), int(feature.offsets[end])
    weights = None if feature.weights is None else feature.weights[first:last]
    return Ragged(feature.ids[first:last], feature.offsets[begin : end + 1] - first, weights)
