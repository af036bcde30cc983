# SPDX-License-Identifier: Apache-2.0
"""Many tables in few lookups: tables of one width are stacked in one storage.

A storage is one parameter with the rows of all its tables; a table is a range of these rows. A step
then has one lookup, one coalescing plan and one row update, instead of one per feature. Features
may share a table. `locate` turns each feature's ids into rows of the storage, on the host, while it
checks the batch; the model gets only rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from tvm.relax.frontend import nn

from sparsetrain.embedding.layer import Embedding
from sparsetrain.embedding.lookup_operators import embedding_bag
from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import require_int

Pooling = Literal["sum", "mean"] | None
POOLINGS = (None, "sum", "mean")


@dataclass(frozen=True)
class Table:
    """One embedding table.

    Parameters
    ----------
    name : str
        Name in parameters and checkpoints.
    rows : int
        Number of rows, V.
    width : int
        Length of a row, D.
    """

    name: str
    rows: int
    width: int

    def __post_init__(self) -> None:
        for size in ("rows", "width"):
            number = require_int(f"table {self.name!r}: {size}", getattr(self, size))
            object.__setattr__(self, size, number)


class EmbeddingBag(Embedding):
    """One table, with one id per example, or pooled over a bag of ids.

    Parameters
    ----------
    rows, width : int
        V and D of the table.
    pooling : {None, "sum", "mean"}, or a sequence of them for each feature
        None: one id per result row. Otherwise like `torch.nn.EmbeddingBag` with
        ``include_last_offset=True``.
    features : int
        Number of features with consecutive bags in `ids`; see `embedding_bag`.
    dtype : str
        Dtype of the stored table; the result of a half table is float32.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        pooling: Pooling | Sequence[Pooling] = None,
        *,
        features: int = 1,
        dtype: str = "float32",
    ) -> None:
        super().__init__(rows, width, dtype=dtype)
        self.features = require_int("EmbeddingBag: features", features)
        self.poolings = _poolings("EmbeddingBag", pooling, self.features)

    def forward(
        self, ids: nn.Tensor, offsets: nn.Tensor | None = None, weights: nn.Tensor | None = None
    ) -> nn.Tensor:
        """Return rows for ids of any shape, or (B, F, D) for (N,) ids with (F * B + 1,) offsets."""
        if None in self.poolings:
            if offsets is not None or weights is not None:
                raise ConfigError("EmbeddingBag without pooling takes only ids")
            return self.lookup(ids)
        if offsets is None:
            raise ConfigError(
                "EmbeddingBag with pooling needs offsets; use `.lookup(ids)` for rows of single ids"
            )
        result = embedding_bag(
            self.weight._expr,
            ids._expr,
            offsets._expr,
            None if weights is None else weights._expr,
            mode=self.poolings,
            features=self.features,
        )
        return nn.op.wrap_nested(result, "embedding")


def _poolings(what: str, given: Pooling | Sequence[Pooling], features: int) -> tuple[Any, ...]:
    """Return the pooling of each feature; None must be for all features or for none."""
    single = given is None or isinstance(given, str)
    each: tuple[Any, ...] = (given,) * features if single else tuple(given or ())
    wrong = next((one for one in each if one not in POOLINGS), None)
    if wrong is not None or (None in each and len({*each}) > 1):
        raise ConfigError(
            f"{what}: pooling must be None for all features, or 'sum' or 'mean' for each, not "
            f"{wrong or each!r}"
        )
    if len(each) != features:
        raise ConfigError(f"{what}: {len(each)} poolings for {features} features")
    return each


@dataclass(frozen=True)
class Placement:
    """Which rows of a storage each of its tables and features uses.

    Parameters
    ----------
    starts : dict of str to int
        First row of each table.
    features : tuple of int
        Positions of the features with a table in this storage.
    first_rows : (F,) int64
        The first row of each of these features' tables.
    rows : int
        Rows of the storage, including tables that no feature uses.
    """

    starts: dict[str, int]
    features: tuple[int, ...]
    first_rows: np.ndarray
    rows: int

    @property
    def index_dtype(self) -> str:
        """int32 if every row number of the storage fits, else int64."""
        return "int32" if self.rows < 2**31 else "int64"


class EmbeddingBagCollection(nn.Module):
    """Embeddings of F features from tables that features may share, one storage per width.

    Parameters
    ----------
    tables : sequence of Table
        The tables; their names must differ.
    features : sequence of str, optional
        For each feature, the name of its table; by default one feature per table, in order.
    pooling : {None, "sum", "mean"}, or a sequence of F of the last two
        None: one id per example and feature.
    dtype : str
        Dtype of the stored tables.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        features: Sequence[str] | None = None,
        pooling: Pooling | Sequence[Pooling] = None,
        dtype: str = "float32",
    ) -> None:
        by_name = {table.name: table for table in tables}
        if len(by_name) != len(tables):
            raise ConfigError("EmbeddingBagCollection: table names must differ")
        features = list(by_name) if features is None else list(features)
        unknown = [name for name in features if name not in by_name]
        if unknown:
            raise ConfigError(
                f"EmbeddingBagCollection: no table {unknown[0]!r}; there are {list(by_name)}"
            )
        self.tables = tuple(tables)
        self.poolings = _poolings("EmbeddingBagCollection", pooling, len(features))
        self.placements = {
            width: _place([t for t in tables if t.width == width], features)
            for width in sorted({by_name[name].width for name in features})
        }
        for width, placement in self.placements.items():
            here = [self.poolings[feature] for feature in placement.features]
            storage = EmbeddingBag(placement.rows, width, here, features=len(here), dtype=dtype)
            setattr(self, f"width{width}", storage)

    def storage(self, width: int) -> EmbeddingBag:
        """Return the module that holds all tables of one width."""
        return getattr(self, f"width{width}")

    def forward(self, located: Mapping[int, Sequence[nn.Tensor]]) -> dict[int, nn.Tensor]:
        """Map width -> arrays from `locate` to width -> embeddings (B, F, D)."""
        return {width: self.storage(width)(*arrays) for width, arrays in located.items()}

    def slices(self) -> dict[str, tuple[int, slice]]:
        """Return table name -> (width of its storage, rows in it)."""
        return {
            table.name: (table.width, slice(start, start + table.rows))
            for table in self.tables
            if table.width in self.placements
            for start in [self.placements[table.width].starts[table.name]]
        }

    def locate(
        self, ids: np.ndarray | Sequence[Any], weighted: bool | None = None
    ) -> dict[int, tuple[np.ndarray, ...]]:
        """Convert each feature's checked ids to rows of each storage.

        Parameters
        ----------
        ids : (B, F) integer array, or F bags with `ids`, `offsets` and `weights`
            Ids within each table, already checked against its number of rows.
        weighted : bool, optional
            Whether bags must have weights; by default they may.

        Returns
        -------
        dict
            Width -> ``(rows (B, F),)`` without pooling, or ``(rows (N,), offsets (F * B + 1,))``
            with ``weights (N,)`` as a third array if the bags have them.

        Raises
        ------
        ConfigError
            If weights are missing or unexpected.
        """
        find = _locate_single if None in self.poolings else _locate_bags
        located = {width: find(placement, ids) for width, placement in self.placements.items()}
        has = any(len(arrays) == 3 for arrays in located.values())
        if weighted is not None and has != weighted:
            raise ConfigError(
                f"the batch {'has' if has else 'lacks'} per-sample weights, but the model's "
                f"weighted is {weighted}"
            )
        return located


def _place(tables: Sequence[Table], features: Sequence[str]) -> Placement:
    # Small tables come first, so that the densely updated ones form one range of rows.
    rising = sorted(tables, key=lambda table: table.rows)
    ends = np.cumsum([table.rows for table in rising])
    starts = {table.name: int(end) - table.rows for table, end in zip(rising, ends, strict=True)}
    here = [position for position, name in enumerate(features) if name in starts]
    return Placement(
        starts,
        tuple(here),
        np.array([starts[features[position]] for position in here], np.int64),
        sum(table.rows for table in tables),
    )


def _locate_single(placement: Placement, ids: Any) -> tuple[np.ndarray, ...]:
    if not isinstance(ids, np.ndarray):
        raise ConfigError("this model takes one id per feature, (B, F); the batch has bags")
    chosen = ids if len(placement.features) == ids.shape[1] else ids[:, placement.features]
    dtype = placement.index_dtype
    return (np.add(chosen, placement.first_rows, dtype=dtype, casting="unsafe"),)


def _locate_bags(placement: Placement, bags: Any) -> tuple[np.ndarray, ...]:
    if isinstance(bags, np.ndarray):
        bags = [
            SimpleNamespace(ids=column, offsets=np.arange(len(column) + 1), weights=None)
            for column in bags.T
        ]
    chosen = [bags[position] for position in placement.features]
    rows = [
        np.add(bag.ids, first, dtype=placement.index_dtype, casting="unsafe")
        for bag, first in zip(chosen, placement.first_rows, strict=True)
    ]
    before = np.cumsum([0, *(len(r) for r in rows)])
    offsets = [bag.offsets[:-1] + start for bag, start in zip(chosen, before, strict=False)]
    located = (np.concatenate(rows), np.concatenate([*offsets, before[-1:]]).astype(np.int64))
    weights = [bag.weights for bag in chosen if bag.weights is not None]
    if weights and len(weights) != len(chosen):
        raise ConfigError("per-sample weights must be given for all features of a batch or none")
    return (*located, np.concatenate(weights)) if weights else located
