# SPDX-License-Identifier: Apache-2.0
"""`Fields`: all category columns of a batch as one feature, looked up in tables of one storage.

A step then has one lookup, one plan and one row update, whatever the number of columns. The host
turns ids into rows of the storage while it checks them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from tvm.relax.frontend import nn

from sparsetrain.data.batch import Batch
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.embedding.bags import BagPlacing
from sparsetrain.embedding.collection import EmbeddingBagCollection
from sparsetrain.embedding.placing import Placing, Room
from sparsetrain.errors import ConfigError
from sparsetrain.models.features import Arrays, Feature, Ids, Specs
from sparsetrain.models.numbers import NumberEmbedding


class Fields(Feature):
    """The ids of F columns, one each or lists of them, and their embeddings (B, F, D).

    A model calls this feature ``embedded``, and its `Dense` ``dense``.

    Parameters
    ----------
    embeddings : EmbeddingBagCollection
        Tables of one width, which is the attribute `attribute` of the model.
    names : sequence of F str
        The columns; also names of the tables, unless they share one.
    rows : sequence of F int
        Rows of each column's table.
    owners : sequence of F int
        For each column, the position of the one that its table is named after.
    arguments : sequence of str
        Of ``("rows", "offsets", "weights")`` the first one, or of pooled lists two or three.
    num_dense : int
        Numbers of a row in the feature ``dense``, a `Dense` that every such model has too: its
        extent tells the compiler how many rows bags are for.
    numbers : NumberEmbedding, optional
        Makes N further embeddings of ``dense``, which come first.

    Notes
    -----
    In the model: ``nn.Tensor`` (B, F, D).
    """

    attribute = "embeddings"
    covers = frozenset(("dense", "embedded"))  # features that `placed` writes

    def __init__(
        self,
        embeddings: EmbeddingBagCollection,
        names: Sequence[str],
        rows: Sequence[int],
        owners: Sequence[int],
        arguments: Sequence[str],
        num_dense: int = 0,
        numbers: NumberEmbedding | None = None,
    ) -> None:
        ((self.dim, self._placement),) = embeddings.placements.items()
        self._embeddings, self._num_dense, self._numbers = embeddings, num_dense, numbers
        self.names, self._rows, self.owners = list(names), list(rows), tuple(owners)
        self._arguments = tuple(arguments)

    @property
    def storage(self) -> str:
        """Name of the parameter that holds all tables."""
        return f"{self.attribute}.width{self.dim}.weight"

    @property
    def first_rows(self) -> list[int]:
        """Row of the storage at which each column's table begins."""
        return self._placement.first_rows.tolist()

    # --- In the program -----------------------------------------------------------------------

    def specs(self, name: str, rows: int) -> Specs:
        """Types of the arguments."""
        dtype = self._placement.index_dtype
        if len(self._arguments) == 1:
            return {"rows": nn.spec.Tensor(["B", len(self.names)], dtype)}
        specs = (["N"], dtype), (["bags_plus_1"], "int64"), (["N"], "float32")
        named = zip(self._arguments, specs, strict=False)
        return {name: nn.spec.Tensor(*spec) for name, spec in named}

    def value(self, name: str, tensors: Mapping[str, nn.Tensor]) -> nn.Tensor:
        """The embeddings (B, N + F, D), for a method of the model."""
        located = [tensors[n] for n in self._arguments]
        embedded, dense = self._embeddings({self.dim: located})[self.dim], tensors["dense"]
        if len(located) > 1:
            # The compiler cannot prove that len(offsets) - 1 is F * B.
            extents = (dense.shape[0], len(self.names), self.dim)
            embedded = nn.op.reshape(embedded, extents)
        if self._numbers is None:
            return embedded
        return nn.op.concat([self._numbers(dense), embedded], dim=1)

    # --- On the host --------------------------------------------------------------------------

    def read(self, name: str, batch: Batch, column: Any) -> Batch:
        """The batch: its ids are checked and located together."""
        return batch

    def read_one(self, name: str, batch: Batch) -> np.ndarray:
        """The ids of one column, (B,) int64."""
        return Ids(name).read(name, batch, self.names.index(name))

    def arrays(self, name: str, value: Batch, rows: int, *_place: Any) -> Arrays:
        """The arguments, checked."""
        value.check_rows(self._rows, self.names)
        located = self._embeddings.locate(value.ids, len(self._arguments) == 3)[self.dim]
        return dict(zip(self._arguments, located, strict=True))

    def placed(
        self, batch: Batch, floats: Mapping[str, np.ndarray], room: Room | None
    ) -> Arrays | None:
        """All arguments, written by one kernel; None where `arrays` will refuse, or a `Dense`.

        Parameters
        ----------
        batch : Batch
        floats : mapping from str to array
            Further arguments, copied to aligned memory; not beside lists.
        room : callable, optional
            As in `Model.inputs`. Without, the kernel runs on all threads.
        """
        ids = batch.ids
        count = ids.shape[1] if isinstance(ids, np.ndarray) else len(ids)
        if count != len(self.names) or batch.dense.shape[1] != self._num_dense:
            return None
        if self._num_dense:
            floats = {**floats, "dense": batch.dense}
        if len(self._arguments) > 1:
            found = self._bag_placing(ids, room)
            placed = None if found is None else {**floats, **found}
        else:
            placed = self._placing(ids, floats, room) if isinstance(ids, np.ndarray) else None
        if placed is not None and not self._num_dense:
            placed["dense"] = np.ones((len(batch), 1), np.float32)
        return placed

    @cached_property
    def _placing(self) -> Placing:
        placement = self._placement
        return Placing(placement.first_rows, self._rows, placement.index_dtype)

    @cached_property
    def _bag_placing(self) -> BagPlacing:
        placement = self._placement
        return BagPlacing(
            placement.first_rows, self._rows, placement.index_dtype, len(self._arguments) == 3
        )

    # --- Tables -------------------------------------------------------------------------------

    def storages(self, rows_of: Any) -> dict[str, dict[str, slice]]:
        """Parameter name of each storage -> the rows of each table in it."""
        return {self.storage: {t: rows for t, (_, rows) in self._embeddings.slices().items()}}

    def rows_read(self, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """For each storage, the rows that the functions read."""
        return {self.storage: inputs["rows"]} if "rows" in inputs else {}

    def single_ids(self, name: str) -> list[str]:
        """Names of the columns, by which rows can be grouped."""
        return self.names

    def table_of(self, name: str, column: str) -> str | None:
        """Name of the table of a column, as in saved runs; None if it is no field."""
        if column not in self.names:
            return None
        return f"{self.attribute}.{self.names[self.owners[self.names.index(column)]]}.weight"

    def find(self, cls: str, name: str, rows: int, encoder: Encoder) -> None:
        """Refuse an encoder with a different sharing of tables among its columns.

        Ids that came already encoded may share tables in any way: their meaning is fixed.

        Raises
        ------
        ConfigError
            With the column that differs.
        """
        if encoder.encoded and not encoder.share_embedding:
            return
        wanted = encoder.owners
        if len(self.owners) != len(wanted):  # the first batch is refused for that
            return
        for column, mine, theirs in zip(encoder.columns, self.owners, wanted, strict=True):
            if mine != theirs:
                raise ConfigError(
                    f"{cls}: {column} {_owner(mine, encoder.columns, column)}, but in the encoder "
                    f"it {_owner(theirs, encoder.columns, column)}: give the model "
                    "share_embedding=encoder.share_embedding"
                )


def _owner(owner: int, columns: Sequence[str], name: str) -> str:
    whose = columns[owner]
    return "has a table of its own" if whose == name else f"shares that of {whose}"
