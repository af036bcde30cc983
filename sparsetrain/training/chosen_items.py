# SPDX-License-Identifier: Apache-2.0
"""Sparse matrix of users' choices in the training rows, built in one pass before the first step.

A row's items are the ids of the model's `target` and `seen` features, so every kind of split gives
the same matrix. The matrix needs 5 bytes per choice; the pairs are sorted once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sparsetrain.data import Dataset
from sparsetrain.models.features import index_dtype

if TYPE_CHECKING:  # scipy imports slowly, and few models need it
    from scipy.sparse import csr_array

_ROWS = 65_536  # rows read at once


def chosen_items(model: Any, dataset: Dataset) -> csr_array:
    """Return a (U, V) bool matrix of which user chose which item, by `user` and `target` ids."""
    from scipy.sparse import csr_array

    users, items = (model.rows_of(model.features[name]) for name in ("user", model.target))
    pairs = [_distinct(model, batch, items) for batch in dataset.batches(_ROWS)]
    keys = _each_once(np.concatenate([*pairs, np.empty(0, np.int64)]))
    known = model.item_range()
    keys = keys[(keys % items >= known.start) & (keys % items < known.stop)]
    offsets = np.searchsorted(keys // items, np.arange(users + 1))
    chosen = (keys % items).astype(index_dtype(max(items, len(keys))))
    return csr_array((np.ones(len(keys), bool), chosen, offsets), shape=(users, items))


def learn_(trainer: Any, dataset: Dataset) -> None:
    """Set constant parameters to values computed from all rows of a dataset."""
    learnt = trainer.model.learn(chosen_items(trainer.model, dataset))
    with trainer._writing() as target:
        for name, array in learnt.items():
            target[name][...] = array


def _distinct(model: Any, batch: Any, items: int) -> np.ndarray:
    """Return the distinct values ``user * items + item`` of a batch."""
    user, found = model.read("user", batch), []
    for name in {model.target, model.seen} - {None}:
        lists = model.read(name, batch, whole=True)
        found.append(user[lists.rows()] * np.int64(items) + lists.ids)
    return _each_once(np.concatenate(found))


def _each_once(keys: np.ndarray) -> np.ndarray:
    """Do the same as `numpy.unique`, which hashes integers and takes ten times as long."""
    keys = np.sort(keys)
    return keys[np.diff(keys, prepend=-1) != 0]
