# SPDX-License-Identifier: Apache-2.0
"""Features of a model: the columns that it reads, and their conversion to a program's arguments.

A `Model` declares `Ids`, `Sequence` and `Dense` (and `Fields`, in a file of its own) by name. On
the host a feature is read from a batch and checked against its table; in the model it is a tensor,
or a `RaggedTensor`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm.relax.frontend import nn

from sparsetrain.data.batch import Batch
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.ragged import Ragged, one_each
from sparsetrain.embedding.ragged_tensor import RaggedTensor
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.runtime.tensors import reshape_view

Specs = dict[str, nn.spec.Tensor]
Arrays = dict[str, Any]  # NumPy arrays, or tensors that a kernel wrote
# (name, ids, rows, dtype) -> a tensor of ids; None if an id is outside [0, rows).
Place = Callable[[str, np.ndarray, int, str], Any]


def _by_numpy(*_ids: Any) -> None:
    return None


def index_dtype(rows: int) -> str:
    """Return "int32" if every row number fits, else "int64"."""
    return "int32" if rows < 2**31 else "int64"


def bags_of(batch: Batch, column: int) -> Ragged:
    """Return a column's ids as bags; in a batch without bags, each bag has one id."""
    if not isinstance(batch.ids, np.ndarray):
        return batch.ids[column]
    return one_each(np.ascontiguousarray(batch.ids[:, column]))


def column_of(name: str, feature: Feature) -> str:
    """Return a feature's column: its `column`, by default its name."""
    return getattr(feature, "column", None) or name


class Feature(ABC):
    """Base class of features; each method gets the feature's name in the `Model`."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Attributes of the model that hold its `Embedding` layers."""
        return ()

    @abstractmethod
    def specs(self, name: str, rows: int) -> Specs:
        """Return the types of the feature's arguments to a program."""

    @abstractmethod
    def value(self, name: str, tensors: Mapping[str, nn.Tensor]) -> Any:
        """Make the value that the model's methods get, from a program's arguments."""

    @abstractmethod
    def read(self, name: str, batch: Batch, column: Any) -> Any:
        """Return the feature's values in a batch, on the host."""

    @abstractmethod
    def arrays(self, name: str, value: Any, rows: int, place: Place = _by_numpy) -> Arrays:
        """Return the checked arguments of a program, from a result of `read`."""

    def find(self, cls: str, name: str, rows: int, encoder: Encoder) -> Any:
        """Return the column's position in an encoder's batches, the argument `column` of `read`."""
        return None

    def storages(self, rows_of: Callable[[str], int]) -> dict[str, dict[str, slice]]:
        """Return, for each storage's parameter name, the rows of each table in it."""
        return {f"{t}.weight": {t: slice(0, rows_of(t))} for t in self.tables}

    def rows_read(self, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return, for each storage, the rows that a program reads, given its inputs."""
        if name not in inputs:
            return {}
        return {f"{table}.weight": _flat(inputs[name]) for table in self.tables}

    def table_of(self, name: str, column: str) -> str | None:
        """Return the parameter name of a column's table, if this feature reads the column."""
        own = self.tables and column == column_of(name, self)
        return f"{self.tables[0]}.weight" if own else None

    def single_ids(self, name: str) -> list[str]:
        """Return the feature names for which `Model.read` returns one id per row."""
        return []


@dataclass(frozen=True)
class Ids(Feature):
    """One id per row, or a fixed number of ids.

    Parameters
    ----------
    table : str or tuple of str
        The attributes of the model that hold the `Embedding` of these ids.
    count : int, optional
        Ids per row; the input is (B, count), which only `Model.prepare` can produce.
    shared : bool
        Whether all rows of a batch share the `count` ids; the input is then (count,).
    column : str, optional
        Name of the column in the data; by default the feature's name.

    Notes
    -----
    In the model: ``nn.Tensor`` (B,), (B, count) or (count,).
    """

    table: str | tuple[str, ...]
    count: int | None = None
    column: str | None = None
    shared: bool = False

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of the tables."""
        return _tuple(self.table)

    def specs(self, name: str, rows: int) -> Specs:
        """Return the types of the arguments."""
        shape = ["B"] * (not self.shared) + ([] if self.count is None else [self.count])
        return {name: nn.spec.Tensor(shape, index_dtype(rows))}

    def read(self, name: str, batch: Batch, column: int) -> np.ndarray:
        """Return the column's ids, (B,) int64."""
        if isinstance(batch.ids, np.ndarray):
            return batch.ids[:, column]
        bags = batch.ids[column]
        lengths = np.diff(bags.offsets)
        if (lengths != 1).any():
            row = int(np.argmax(lengths != 1))
            raise DataError(
                f"row {row}, feature {name}: it has {lengths[row]} ids, where the model reads one"
            )
        return bags.ids

    def find(self, cls: str, name: str, rows: int, encoder: Encoder) -> int:
        """Return the position of its column."""
        return _category(cls, self.tables[0], column_of(name, self), rows, encoder)

    def single_ids(self, name: str) -> list[str]:
        """Return its own name."""
        return [name]

    def arrays(self, name: str, value: Any, rows: int, place: Place = _by_numpy) -> Arrays:
        """Return the checked arguments."""
        ids = _integers(name, value)
        return {name: _placed(name, ids, rows, lambda at: at // (self.count or 1), place)}

    def value(self, name: str, tensors: Mapping[str, nn.Tensor]) -> nn.Tensor:
        """Return the value that the model's methods get."""
        return tensors[name]


@dataclass(frozen=True)
class Sequence(Feature):
    """The ids of a list column in order, any number of them in a row.

    Parameters
    ----------
    table : str or tuple of str
        The attributes of the model that hold the `Embedding` of these ids.
    length : int, optional
        Maximum number of ids in a row; the last ones are kept.
    weighted : bool
        Whether each id has a weight.
    like : str, optional
        Name of a sequence with the same row lengths, so that layers may add the two.
    column : str, optional
        Name of the column in the data; by default the feature's name.

    Notes
    -----
    In the model: `RaggedTensor` of N ids in B rows.
    """

    table: str | tuple[str, ...]
    length: int | None = None
    weighted: bool = False
    like: str | None = None
    column: str | None = None

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of the tables."""
        return _tuple(self.table)

    def specs(self, name: str, rows: int) -> Specs:
        """Return the types of the arguments."""
        tokens = f"N_{self.like or name}"
        specs = {name: nn.spec.Tensor([tokens], index_dtype(rows))}
        if self.like is None:
            specs[f"{name}_ends"] = nn.spec.Tensor(["B"], "int64")
        if self.weighted:
            specs[f"{name}_weights"] = nn.spec.Tensor([tokens], "float32")
        return specs

    def read(self, name: str, batch: Batch, column: int) -> Ragged:
        """Return the column's bags."""
        bags = bags_of(batch, column)
        if self.weighted != (bags.weights is not None):
            verb = "lacks" if self.weighted else "has"
            raise DataError(
                f"feature {name}: the batch {verb} weights of ids, but the model's Sequence has "
                f"weighted={self.weighted}"
            )
        return bags if self.length is None else bags.last(self.length)

    def find(self, cls: str, name: str, rows: int, encoder: Encoder) -> int:
        """Return the position of its column."""
        return _category(cls, self.tables[0], column_of(name, self), rows, encoder)

    def arrays(self, name: str, value: Any, rows: int, place: Place = _by_numpy) -> Arrays:
        """Return the checked arguments."""
        value = _bags(name, value)
        ids = _integers(name, value.ids)
        arrays = {name: _placed(name, ids, rows, value.row_of, place)}
        if self.like is None:
            arrays[f"{name}_ends"] = value.offsets[1:]
        if value.weights is not None:
            arrays[f"{name}_weights"] = value.weights
        return arrays

    def value(self, name: str, tensors: Mapping[str, nn.Tensor]) -> RaggedTensor:
        """Return the value that the model's methods get."""
        ends, weights = tensors[f"{self.like or name}_ends"], tensors.get(f"{name}_weights")
        return RaggedTensor(tensors[name], ends, weights)


@dataclass(frozen=True)
class Places(Feature):
    """Positions of some tokens within a sequence's rows; only `Model.prepare` can produce them.

    Notes
    -----
    In the model: `RaggedTensor` of M integers in B rows, for `RaggedTensor.take`.
    """

    def specs(self, name: str, rows: int) -> Specs:
        """Return the types of the arguments."""
        ends = {f"{name}_ends": nn.spec.Tensor(["B"], "int64")}
        return {name: nn.spec.Tensor([f"N_{name}"], "int64"), **ends}

    def read(self, name: str, batch: Batch, column: Any) -> Any:
        """Raise an error: no batch has places."""
        raise ConfigError(
            f"feature {name}: Places cannot be read from a batch: move it from `features` to "
            "`prepared`"
        )

    def arrays(self, name: str, value: Any, rows: int, place: Place = _by_numpy) -> Arrays:
        """Return the checked arguments."""
        places = _bags(name, value)
        ids = _integers(name, places.ids).astype(np.int64, copy=False)
        return {name: ids, f"{name}_ends": places.offsets[1:]}

    def value(self, name: str, tensors: Mapping[str, nn.Tensor]) -> RaggedTensor:
        """Return the value that the model's methods get."""
        return RaggedTensor(tensors[name], tensors[f"{name}_ends"])


@dataclass(frozen=True)
class Dense(Feature):
    """A vector of floats for each row.

    Parameters
    ----------
    width : int
        Number of floats; with 0 the model gets a column of ones.
    columns : tuple of str, optional
        The encoder's dense columns to read; by default all.

    Notes
    -----
    In the model: ``nn.Tensor`` (B, width) float32.
    """

    width: int
    columns: tuple[str, ...] | None = None

    def specs(self, name: str, rows: int) -> Specs:
        """Return the types of the arguments."""
        return {name: nn.spec.Tensor(["B", max(self.width, 1)], "float32")}

    def read(self, name: str, batch: Batch, column: Any) -> np.ndarray:
        """Return the columns' floats."""
        if column is not None:
            return batch.dense[:, column]
        if batch.dense.shape[1] != self.width:
            raise DataError(
                f"the batch has {batch.dense.shape[1]} dense features, the model {self.width}"
            )
        return batch.dense

    def find(self, cls: str, name: str, rows: int, encoder: Encoder) -> list[int] | None:
        """Return the positions of its columns; None for all columns."""
        if self.columns is None:
            return None
        known = list(encoder.dense_columns)
        missing = [name for name in self.columns if name not in known]
        if missing:
            raise ConfigError(
                f"{cls} reads the dense column {missing[0]!r}; the encoder has {', '.join(known)}"
            )
        return [known.index(name) for name in self.columns]

    def arrays(self, name: str, value: Any, rows: int, place: Place = _by_numpy) -> Arrays:
        """Return the checked arguments."""
        array = np.asarray(value, np.float32)
        if array.ndim != 2 or array.shape[1] != self.width:
            raise DataError(
                f"feature {name}: its shape is {array.shape}, but the model reads (B, {self.width})"
            )
        return {name: array if self.width else np.ones((len(array), 1), np.float32)}

    def value(self, name: str, tensors: Mapping[str, nn.Tensor]) -> nn.Tensor:
        """Return the value that the model's methods get."""
        return tensors[name]


def _category(cls: str, table: str, column: str, rows: int, encoder: Encoder) -> int:
    columns = list(encoder.columns)
    if column not in columns:
        raise ConfigError(
            f"{cls} reads the column {column!r}; the encoder has {', '.join(columns)}"
        )
    place = columns.index(column)
    if encoder.rows[place] > rows:
        raise ConfigError(
            f"{cls}: {table} has {rows} rows, the encoder's {column} {encoder.rows[place]}: make "
            "the model with as many"
        )
    return place


def _flat(ids: Any) -> Any:
    """Flatten ids, an array or a tensor, without a copy."""
    return ids.reshape(-1) if isinstance(ids, np.ndarray) else reshape_view(ids, (prod(ids.shape),))


def _tuple(table: str | tuple[str, ...]) -> tuple[str, ...]:
    return (table,) if isinstance(table, str) else tuple(table)


def require_alike(name: str, feature: Feature, values: Mapping[str, Any]) -> None:
    """Refuse a sequence if its row lengths differ from the sequence `like`.

    Raises
    ------
    DataError
        If row lengths differ; the message names the first such row.
    """
    like = feature.like if isinstance(feature, Sequence) else None
    if like is None or like not in values:
        return
    lengths = (np.diff(values[each].offsets) for each in (name, like))
    other = np.not_equal(*lengths)
    if other.any():
        row = int(np.argmax(other))
        raise DataError(f"row {row}, feature {name}: it has more or fewer ids than {like}")


def _bags(name: str, value: Any) -> Ragged:
    if not isinstance(value, Ragged):
        raise DataError(f"feature {name}: give a sparsetrain.data.Ragged, not {value!r:.40}")
    return value


def _integers(name: str, value: Any) -> np.ndarray:
    ids = np.asarray(value)
    if ids.dtype.kind not in "iu":
        raise DataError(f"feature {name}: ids must be integers, not {ids.dtype}")
    return ids


def _placed(name: str, ids: np.ndarray, rows: int, row_of: Any, place: Place) -> Any:
    """Return checked ids of a table, in the dtype that programs take."""
    placed = place(name, ids, rows, index_dtype(rows))
    if placed is None:
        _check(name, ids.reshape(-1), rows, row_of)
        placed = ids.astype(index_dtype(rows))
    return placed


def _check(name: str, ids: np.ndarray, rows: int, row_of: Any) -> None:
    """Refuse ids outside their table."""
    if not ids.size or (ids.min() >= 0 and ids.max() < rows):
        return
    place = int(np.argmax((ids < 0) | (ids >= rows)))
    raise DataError(
        f"row {row_of(place)}, feature {name}: id {ids[place]} is outside its table of {rows} "
        "rows; use the encoder of the model, or a larger table"
    )
