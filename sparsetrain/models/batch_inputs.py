# SPDX-License-Identifier: Apache-2.0
"""A batch as the arguments of a click model's functions: checked against the model, ids located.

Nothing here is computed by the compiled functions; they trust what they are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsetrain.embedding import EmbeddingBagCollection
from sparsetrain.embedding.placing import Placing, Room
from sparsetrain.errors import ConfigError, DataError


class BatchInputs:
    """What a `ClickModel` makes of a batch, by its configuration and its tables."""

    embeddings: EmbeddingBagCollection
    _config: dict[str, Any]
    _placing: Placing | None

    def inputs(
        self, batch: Any, *, threads: bool = False, room: Room | None = None
    ) -> dict[str, Any]:
        """Check a batch against this model and turn it into the arguments of its functions.

        Parameters
        ----------
        batch : Batch
        threads : bool
            Whether a kernel may do it, on its threads, for the thread that runs the functions; its
            results are tensors.
        room : callable, optional
            (name, shape, dtype) -> tensor: memory that a kernel may write an argument into, on the
            calling thread alone. What no kernel writes is an array, as without it.

        Raises
        ------
        DataError
            If an id is outside its table, or the numbers of features differ.
        """
        _check_width(batch.dense, self._config["num_dense"])
        placed = self._placed(batch, room) if threads or room else None
        if placed is not None:
            return placed
        batch.check_rows(self._config["rows"], self._config["names"])
        located = self.embeddings.locate(batch.ids)[self._config["dim"]]
        wanted = 3 if self._config["weighted"] else 2 if self._config["pooling"] else 1
        if len(located) != wanted:
            given = "has" if len(located) > wanted else "lacks"
            raise ConfigError(
                f"the batch {given} per-sample weights, but the model's weighted is "
                f"{self._config['weighted']}"
            )
        names = ("rows", "offsets", "weights")
        dense = batch.dense if self._config["num_dense"] else _constant(batch)
        arrays = {"dense": dense, **dict(zip(names, located, strict=False))}
        return {**arrays, **self._of_rows(batch)}

    def _of_rows(self, batch: Any) -> dict[str, np.ndarray]:
        """What a batch has for the loss alone."""
        weights = batch.weights if self._config["row_weights"] else None
        given = {"labels": batch.labels, "row_weights": weights}
        return {name: array for name, array in given.items() if array is not None}

    def check_weights(self, batch: Any) -> None:
        """Refuse a batch to train on whose rows have weights where the model wants none, or lack.

        Raises
        ------
        DataError
            With what to change.
        """
        wanted = self._config["row_weights"]
        if wanted and batch.weights is None:
            raise DataError(
                "the batch has no weights of rows, but the model's row_weights is True: "
                "Batch(..., weights=w), or an encoder that was fitted with weights=COLUMN"
            )
        if not wanted and batch.weights is not None:
            raise DataError(
                "the batch has weights of rows, which this model would not read: make it with "
                "row_weights=True"
            )

    def _placed(self, batch: Any, room: Room | None) -> dict[str, Any] | None:
        """The arguments, for single ids that are inside their tables; None for all others."""
        count, ids = len(self._config["rows"]), batch.ids
        if self._config["pooling"] or isinstance(ids, tuple) or ids.shape[1] != count:
            return None
        if self._placing is None:
            placement = self.embeddings.placements[self._config["dim"]]
            index_dtype = placement.index_dtype
            self._placing = Placing(placement.first_rows, self._config["rows"], index_dtype)
        floats = {**self._of_rows(batch), "dense": batch.dense}
        given = {name: array for name, array in floats.items() if array.size}
        tensors = self._placing(ids, given, room)
        if tensors is None:
            return None
        return tensors if "dense" in given else {**tensors, "dense": _constant(batch)}

    def columns(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """For each storage that (B, F) ids are looked up in: each feature's first row, and rows.

        `inputs` lets no other ids pass, so columns can be sorted one by one.
        """
        if self._config["pooling"]:
            return {}
        width = self._config["dim"]
        first = self.embeddings.placements[width].first_rows.tolist()
        pairs = zip(first, self._config["rows"], strict=True)
        return {f"embeddings.width{width}.weight": tuple(pairs)}

    def rows_read(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """For each storage, the rows that its functions will read, given what `inputs` returned."""
        return {f"embeddings.width{self._config['dim']}.weight": inputs["rows"]}


def _constant(batch: Any) -> np.ndarray:
    """What stands for the dense features of a batch that has none."""
    return np.ones((len(batch), 1), np.float32)


def _check_width(dense: np.ndarray, num_dense: int) -> None:
    if dense.shape[1] != num_dense:
        raise DataError(f"the batch has {dense.shape[1]} dense features, the model {num_dense}")
