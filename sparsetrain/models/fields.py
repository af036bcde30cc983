# SPDX-License-Identifier: Apache-2.0
"""`Fields`: all category columns of a batch as one feature, looked up in a storage for each width.

A step then has one lookup, one plan and one row update for each width, for any number of columns.
The host turns ids into rows of the storages while it checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from tvm.relax.frontend import nn

from sparsetrain.data.batch import Batch
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.shared_tables import require_alike
from sparsetrain.embedding.bags import BagPlacing
from sparsetrain.embedding.collection import EmbeddingBagCollection, Placement
from sparsetrain.embedding.placing import Placing, Room
from sparsetrain.models.features import Arrays, Feature, Ids, Specs
from sparsetrain.models.numbers import NumberEmbedding


class Part(NamedTuple):
    """The columns with embeddings of one width.

    Attributes
    ----------
    width : int
    placement : Placement
        Positions of their tables in the storage.
    arguments : tuple of str
        Names of the program's arguments: rows, then offsets and weights if there are any.
    """

    width: int
    placement: Placement
    arguments: tuple[str, ...]


# (embeddings (B, F, width) of each `Part`) -> all embeddings in the order of the columns.
Join = Callable[[Sequence[nn.Tensor]], nn.Tensor]


class Fields(Feature):
    """The ids of F columns, single ids or lists, and their embeddings (B, F, D).

    A model names this feature ``embedded``, and its `Dense` feature ``dense``.

    Parameters
    ----------
    embeddings : EmbeddingBagCollection
        The tables; the model holds them as its attribute ``embeddings``.
    names : sequence of F str
        Names of the columns, and of their tables unless shared.
    rows : sequence of F int
        Number of rows of each column's table.
    tables : sequence of F str
        Name of each column's table.
    arguments : sequence of str
        Names of the program's arguments: the first of ``("rows", "offsets", "weights")``, or the
        first two or three for pooled lists. If tables have several widths, these names end with the
        width: ``rows_16``.
    num_dense : int
        Width of the feature ``dense``, a `Dense` that every such model has: from its shape the
        compiler knows the batch size for bags.
    numbers : NumberEmbedding, optional
        Makes N embeddings of ``dense``, which precede the embeddings of ids.
    join : callable, optional
        Joins embeddings of several widths.

    Notes
    -----
    In the model: ``nn.Tensor`` (B, N + F, D), or (B, N D + W) if `join` gives (B, W).
    """

    attribute = "embeddings"
    covers = frozenset(("dense", "embedded"))  # features that `placed` writes

    def __init__(
        self,
        embeddings: EmbeddingBagCollection,
        names: Sequence[str],
        rows: Sequence[int],
        tables: Sequence[str],
        arguments: Sequence[str],
        num_dense: int = 0,
        numbers: NumberEmbedding | None = None,
        join: Join | None = None,
    ) -> None:
        placements = embeddings.placements.items()
        self.parts = [
            Part(
                width, each, tuple(f"{n}_{width}" if len(placements) > 1 else n for n in arguments)
            )
            for width, each in placements
        ]
        self._embeddings, self._num_dense, self._numbers = embeddings, num_dense, numbers
        self._join = join
        self.names, self._rows = list(names), list(rows)
        self._tables = dict(zip(names, tables, strict=True))
        self._has_bags, self._is_weighted = len(arguments) > 1, len(arguments) > 2

    def _storage(self, width: int) -> str:
        """Name of the parameter that holds all tables of one width."""
        return f"{self.attribute}.width{width}.weight"

    # --- In the program -----------------------------------------------------------------------

    def specs(self, name: str, rows: int) -> Specs:
        """Return the types of the program's arguments."""
        found: Specs = {}
        for number, (_, placement, arguments) in enumerate(self.parts):
            dtype, of = placement.index_dtype, f"_{number}" if number else ""
            ids = [f"N{of}"] if self._has_bags else ["B", len(placement.features)]
            specs = (ids, dtype), ([f"bags_plus_1{of}"], "int64"), (ids, "float32")
            named = zip(arguments, specs, strict=False)
            found |= {name: nn.spec.Tensor(*spec) for name, spec in named}
        return found

    def value(self, name: str, tensors: Mapping[str, nn.Tensor]) -> nn.Tensor:
        """Look up the embeddings that a method of the model gets."""
        located = {width: [tensors[n] for n in names] for width, _, names in self.parts}
        found, dense = self._embeddings(located), tensors["dense"]
        if self._has_bags:
            # The compiler cannot prove that len(offsets) - 1 is F * B.
            for width, placement, _ in self.parts:
                extents = (dense.shape[0], len(placement.features), width)
                found[width] = nn.op.reshape(found[width], extents)
        each = [found[width] for width, _, _ in self.parts]
        embedded = each[0] if self._join is None else self._join(each)
        if self._numbers is None:
            return embedded
        numbers = self._numbers(dense)  # (B, N, D)
        return nn.op.concat([numbers if len(embedded.shape) == 3 else flat(numbers), embedded], 1)

    # --- On the host --------------------------------------------------------------------------

    def read(self, name: str, batch: Batch, column: Any) -> Batch:
        """Return the whole batch, since `arrays` checks the ids of all columns together."""
        return batch

    def read_one(self, name: str, batch: Batch) -> np.ndarray:
        """Return the ids of one column, (B,) int64."""
        return Ids(name).read(name, batch, self.names.index(name))

    def arrays(self, name: str, value: Batch, rows: int, *_place: Any) -> Arrays:
        """Check the ids, and return the program's arguments."""
        value.check_rows(self._rows, self.names)
        located = self._embeddings.locate(value.ids, self._is_weighted)
        return {
            name: array
            for width, _, names in self.parts
            for name, array in zip(names, located[width], strict=True)
        }

    def placed(
        self, batch: Batch, floats: Mapping[str, np.ndarray], room: Room | None
    ) -> Arrays | None:
        """Return all arguments from a kernel; None if `arrays` or a `Dense` will refuse the batch.

        Parameters
        ----------
        batch : Batch
        floats : mapping from str to array
            Further arguments, which are copied to aligned memory, except with lists.
        room : callable, optional
            As in `Model.inputs`. By default the kernel runs on all threads.
        """
        ids = batch.ids
        count = ids.shape[1] if isinstance(ids, np.ndarray) else len(ids)
        if count != len(self.names) or batch.dense.shape[1] != self._num_dense:
            return None
        if self._num_dense:
            floats = {**floats, "dense": batch.dense}
        placed = (
            self._place_bags(ids, floats, room)
            if self._has_bags
            else self._place(ids, floats, room)
        )
        if placed is not None and not self._num_dense:
            placed["dense"] = np.ones((len(batch), 1), np.float32)
        return placed

    def _place(
        self, ids: Any, floats: Mapping[str, np.ndarray], room: Room | None
    ) -> Arrays | None:
        """Place single ids, one per column; the first kernel also copies the floats."""
        placed: Arrays = {}
        for placing in self._placing if isinstance(ids, np.ndarray) else ():
            found = placing(ids, {} if placed else floats, room)
            if found is None:
                return None
            placed |= found
        return placed or None

    def _place_bags(
        self, ids: Any, floats: Mapping[str, np.ndarray], room: Room | None
    ) -> Arrays | None:
        placed: Arrays = {**floats}
        for (_, placement, _), placing in zip(self.parts, self._bag_placing, strict=True):
            found = placing(self._of_part(ids, placement), room)
            if found is None:
                return None
            placed |= found
        return placed

    @cached_property
    def _placing(self) -> list[Placing]:
        return [
            Placing(
                each.first_rows,
                self._rows_of(each),
                each.index_dtype,
                names[0],
                each.features if len(self.parts) > 1 else None,
            )
            for _, each, names in self.parts
        ]

    @cached_property
    def _bag_placing(self) -> list[BagPlacing]:
        return [
            BagPlacing(each.first_rows, self._rows_of(each), each.index_dtype, names)
            for _, each, names in self.parts
        ]

    def _of_part(self, ids: Any, placement: Placement) -> Any:
        if len(self.parts) == 1:
            return ids
        one_each = isinstance(ids, np.ndarray)
        return ids[:, placement.features] if one_each else [ids[f] for f in placement.features]

    def _rows_of(self, placement: Placement) -> list[int]:
        return [self._rows[feature] for feature in placement.features]

    # --- Tables -------------------------------------------------------------------------------

    def storages(self, rows_of: Any) -> dict[str, dict[str, slice]]:
        """Return, by the parameter name of each storage, the rows of each table in it."""
        found: dict[str, dict[str, slice]] = {self._storage(part.width): {} for part in self.parts}
        for table, (width, rows) in self._embeddings.slices().items():
            found[self._storage(width)][table] = rows
        return found

    def rows_read(self, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rows of each storage that the program reads from these inputs."""
        read = {self._storage(width): names[0] for width, _, names in self.parts}
        return {storage: inputs[rows] for storage, rows in read.items() if rows in inputs}

    def single_ids(self, name: str) -> list[str]:
        """Return the names of the columns; rows can be grouped by the ids of one."""
        return self.names

    def table_of(self, name: str, column: str) -> str | None:
        """Return the name of a column's table, as in saved runs; None for other columns."""
        table = self._tables.get(column)
        return None if table is None else f"{self.attribute}.{table}.weight"

    def find(self, cls: str, name: str, rows: int, encoder: Encoder) -> None:
        """Refuse an encoder in which columns share tables differently than in the model.

        If data came already encoded, columns may share tables in any way: the ids are fixed.

        Raises
        ------
        ConfigError
            If a column differs; the message names it.
        """
        known = encoder.known_tables
        if known is None or len(self.names) != len(known):  # the first batch will be refused
            return
        called = dict(zip(self.names, known, strict=True))  # by position, so names may differ
        require_alike(cls, [*known], [called[t] for t in self._tables.values()], [*known.values()])


def flat(vectors: nn.Tensor) -> nn.Tensor:
    """(B, F, D) -> (B, F D)."""
    batch, features, width = vectors.shape
    return nn.op.reshape(vectors, (batch, features * width))


def in_order(vectors: Sequence[nn.Tensor], features: Sequence[Sequence[int]]) -> nn.Tensor:
    """Concatenate vectors of several widths, in the order of their columns.

    Parameters
    ----------
    vectors : sequence of (B, F, D) tensors
        F and D may differ between them.
    features : sequence of sequences of F int
        Positions of each tensor's vectors among all columns, ascending.

    Returns
    -------
    (B, sum of F D over `vectors`)
    """
    pieces: dict[int, nn.Tensor] = {}  # position of the first vector -> neighbors of one width
    for one, positions in zip(vectors, features, strict=True):
        first = [n for n, at in enumerate(positions) if not n or positions[n - 1] != at - 1]
        cuts = [n * one.shape[2] for n in first[1:]]
        cut = nn.op.split(flat(one), cuts, axis=1) if cuts else [flat(one)]
        pieces |= {positions[n]: piece for n, piece in zip(first, cut, strict=True)}
    return nn.op.concat([pieces[position] for position in sorted(pieces)], dim=1)
