# SPDX-License-Identifier: Apache-2.0
"""Comparisons between ranks: arguments, files and batches must be the same on all of them.

Ranks that differ would train a different model than one process, or wait for each other forever.
Files are compared by their fingerprints; tables in memory, and batches that every rank reads whole,
by a checksum, which costs a pass over their arrays and one message.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sparsetrain.data import Batch, Dataset
from sparsetrain.data.batch import arrays_of
from sparsetrain.errors import DataError
from sparsetrain.parallel.comm import Comm, as_bytes
from sparsetrain.training.fit.resume import fingerprint_of

# Arguments of `fit` that must be equal on all ranks; `_GIVEN` are passed on all ranks or none.
_SAME = ("epochs", "batch_size", "shuffle", "resume", "validate_every", "group_by")
_RULES = ("early_stopping", "reduce_lr")
_GIVEN = ("validation", "run", "stop")


def arguments_of(fit: Callable[..., Any], train: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `fit` to compare, with defaults, as plain values by name."""
    bound = inspect.signature(fit).bind(train, **options)
    bound.apply_defaults()
    given = bound.arguments
    every = {"checkpoints every": getattr(given["run"], "every", None)}
    same = {name: given[name] for name in _SAME} | {name: repr(given[name]) for name in _RULES}
    return same | {f"argument {name}": given[name] is not None for name in _GIVEN} | every


def looks_of(data: Any, dataset: Dataset) -> Any:
    """Return a fingerprint of a rank's rows, independent of the files' paths."""
    prints = fingerprint_of(data)
    if prints is not None:
        return [f"{each['bytes']:,} bytes, sha256 {each['sha256'][:16]}" for each in prints]
    if dataset.num_rows is None:
        return "batches"  # compared one by one
    return f"rows of checksum {dataset.checksum():08x}"


def require_same(batches: Sequence[Batch], comm: Comm) -> None:
    """Refuse batches that differ between ranks; every rank must call this.

    Raises
    ------
    DataError
        If the batches differ; raised on all ranks.
    """
    if comm.size == 1:
        return
    own = np.array([sum(map(len, batches)), checksum(batches)], np.int64)
    found = comm.swap(np.tile(own, (comm.size, 1)))
    others = np.flatnonzero((found != found[0]).any(axis=1)).tolist()
    if others:
        raise DataError(
            f"the next batch has {found[:, 0].tolist()} rows on the ranks, and different values on "
            f"{comm.names_of(others)} and on {comm.name_of(0)}: give all ranks the same batches"
        )


def checksum(batches: Sequence[Batch]) -> int:
    """Return a checksum of all numbers in batches."""
    found = 0
    for batch in batches:
        for array in _arrays_of(batch):
            found = zlib.crc32(as_bytes(array).data, found)
    return found


def _arrays_of(batch: Batch) -> Iterator[np.ndarray]:
    every = batch.dense, *arrays_of(batch.ids), batch.labels, batch.weights
    return (array for array in every if array is not None)
