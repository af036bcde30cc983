# SPDX-License-Identifier: Apache-2.0
"""Saved encoders: a manifest and plain arrays, or one parquet file beside converted data.

Saved state, as `Rules.to_state` returns it, is not trusted: pydantic reads the manifest, and the
type, shape and content of each array is checked. The parquet file has arrays as rows and the
manifest as metadata; page checksums protect the arrays, a digest protects everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.data.columns.category import FIRST, Category, Values, Vocabulary
from sparsetrain.data.columns.plain import LIMIT, PlainIds
from sparsetrain.data.encode.rules import FORMAT, VERSION, Rules, Settings, dense_columns
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.schema.schema_file import fill
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_values import as_binary
from sparsetrain.errors import CheckpointError, ConfigError, first_line
from sparsetrain.parsing.identity import KINDS, Texts
from sparsetrain.system.file_locks import atomic_write

Fields = dict[str, Any]  # arguments of an encoder


def _expect(condition: Any, fault: str) -> None:
    """Refuse a saved encoder that has a fault."""
    if not condition:
        raise ConfigError(fault)


@dataclass(frozen=True)
class _Column:
    """A category column; without a kind, it holds already encoded ids."""

    name: str
    rows: int
    kind: str | None
    lists: bool
    rare_share: float | None
    unsigned: bool

    def __post_init__(self) -> None:
        _expect(self.kind in (None, *KINDS), f"column {self.name!r} has an unknown kind")
        least = 1 if self.kind is None else FIRST
        _expect(least <= self.rows <= LIMIT, f"column {self.name!r} has a table of impossible size")
        share = 0.0 if self.kind is None else self.rare_share
        _expect(share is not None and 0 <= share <= 1, f"column {self.name!r} has no 'rare_share'")


@dataclass(frozen=True)
class _Manifest:
    """Everything except the arrays."""

    format: str
    version: int
    settings: Settings
    dense: tuple[str, ...]
    columns: tuple[_Column, ...]
    layout: str
    schema: Schema

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        sizes = {column.name: (column.rows, column.kind) for column in self.columns}
        raw = {column.kind is not None for column in self.columns}
        _expect(names, "it has no columns")
        _expect(
            len({*names, *self.dense}) == len(names) + len(self.dense), "two columns have one name"
        )
        _expect(len(raw) == 1, "only some columns have kinds")
        self.schema.tables_of(names)
        same = all(sizes[name] == sizes[self.schema.owner(name)] for name in names)
        _expect(same, "columns of one table with different numbers of rows or kinds")


_ARRAYS = {"numbers", "number_ids", "number_starts"}
_ARRAYS |= {"texts", "text_offsets", "text_ids", "text_starts"}


def read_state(manifest: Mapping[str, Any], arrays: Mapping[str, Array]) -> Fields:
    """Return the constructor arguments of the saved encoder.

    Raises
    ------
    CheckpointError
        If anything is missing or inconsistent; every entry is checked.
    """
    try:
        return _read(manifest, arrays)
    except ConfigError as error:
        raise CheckpointError(
            f"the saved encoder: {error}; take the encoder from a finished run"
        ) from None


def _read(manifest: Mapping[str, Any], arrays: Mapping[str, Array]) -> Fields:
    is_ours = isinstance(manifest, Mapping) and manifest.get("format") == FORMAT
    _expect(is_ours, "it is not an encoder's")
    version = manifest.get("version")
    if version != VERSION:
        raise CheckpointError(
            f"the saved encoder has version {version!r}, but this program reads {VERSION}: train, "
            "or convert the data, again"
        )
    read = fill(manifest, _Manifest, "manifest")
    _expect(len(manifest["settings"]) == len(fields_of(Settings)), "it lacks a setting")
    encoded = read.columns[0].kind is None
    values = _plain(read, arrays) if encoded else _vocabularies(read, arrays)
    schema = read.schema
    features = tuple(
        Category.of(
            c.name, schema, values[schema.owner(c.name)], lists=c.lists, unsigned=c.unsigned
        )
        for c in read.columns
    )
    dense = dense_columns(read.dense, encoded, read.settings, read.schema)
    same = {name: getattr(read, name) for name in ("settings", "layout", "schema")}
    return {**same, "dense": dense, "features": features}


def _plain(read: _Manifest, arrays: Mapping[str, Array]) -> dict[str, Values]:
    _expect(not arrays, "it has arrays that already encoded data does not need")
    return {column.name: PlainIds(column.rows) for column in read.columns}


def _vocabularies(read: _Manifest, arrays: Mapping[str, Array]) -> dict[str, Values]:
    """Return each column's vocabulary, empty if the column has no table of its own."""
    _expect(arrays.keys() == _ARRAYS, "it has unknown or missing arrays")
    for name in sorted(_ARRAYS):
        array, dtype = arrays[name], np.uint8 if name == "texts" else np.int64
        fits = isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == 1
        _expect(fits, f"it has an array {name!r} of a wrong type")
    numbers, texts, ends = arrays["numbers"], arrays["texts"], arrays["text_offsets"]
    _cut(arrays, "text_offsets", len(texts), len(ends) - 1)
    for name, wanted in (("number_ids", len(numbers)), ("text_ids", len(ends) - 1)):
        _expect(len(arrays[name]) == wanted, f"it has an array {name!r} of a wrong length")
    of_numbers = _cut(arrays, "number_starts", len(numbers), len(read.columns))
    of_texts = _cut(arrays, "text_starts", len(ends) - 1, len(read.columns))
    found, nan = dict[str, Values](), read.settings.nan_rule
    for column, some, own in zip(read.columns, of_numbers, of_texts, strict=True):
        keys = numbers[some].copy(), arrays["number_ids"][some].copy()
        offsets = ends[own.start : own.stop + 1]
        words = Texts(texts[offsets[0] : offsets[-1]].copy(), offsets - offsets[0])
        of_words = as_binary(words), arrays["text_ids"][own].copy()
        assert column.kind is not None
        made = Vocabulary(column.kind, *keys, *of_words, column.rows, nan, column.rare_share)
        _check_values(made, has_table=read.schema.owner(column.name) == column.name)
        found[column.name] = made
    return found


def _cut(arrays: Mapping[str, Array], name: str, total: int, count: int) -> list[slice]:
    """Return `count` consecutive slices from 0 to `total`, by the starts in the array `name`."""
    starts = arrays[name]
    fits = len(starts) == count + 1 > 0 and starts[0] == 0 and starts[-1] == total
    _expect(fits and (np.diff(starts) >= 0).all(), f"it has inconsistent {name!r}")
    return [slice(*pair) for pair in pairwise(starts.tolist())]


def _check_values(found: Vocabulary, has_table: bool) -> None:
    ids = np.concatenate([found.number_ids, found.text_ids])
    fits = ((ids >= FIRST) & (ids < found.rows)).all()
    _expect(fits, "it gives a value a row outside its table")
    distinct = len(np.unique(found.numbers)) + len(found.texts.unique())
    _expect(distinct == len(ids), "it has one value twice in a column")
    _expect(has_table or not len(ids), "it has values of a column without a table of its own")


ENCODER_FILE = "_encoder.parquet"
_KEY = b"sparsetrain.encoder"
_SCHEMA = pa.schema([("name", pa.string()), ("dtype", pa.string()), ("data", pa.large_binary())])
_CHUNK = 1 << 24  # bytes of an array in one row


def write_file(path: Path, rules: Rules) -> None:
    """Write an encoder; the file appears complete or not at all."""
    manifest, arrays = rules.to_state()
    described = json.dumps({"manifest": manifest, "fingerprint": rules.fingerprint})
    schema = _SCHEMA.with_metadata({_KEY: described})
    with (
        atomic_write(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for name in sorted(arrays):
            for row in _rows(name, arrays[name]):
                writer.write_table(pa.Table.from_pylist([row], schema))


def _rows(name: str, array: Array) -> Iterator[dict[str, Any]]:
    data = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    for start in range(0, max(len(data), 1), _CHUNK):
        part = data[start : start + _CHUNK].tobytes()
        yield {"name": name, "dtype": array.dtype.name, "data": part}


def read_file(path: Path) -> Fields:
    """Return the constructor arguments of the encoder in a file that `write_file` wrote.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or of a different kind.
    """
    try:
        with (
            open(path, "rb") as file,
            pq.ParquetFile(file, page_checksum_verification=True) as reader,
        ):
            described = json.loads(reader.schema_arrow.metadata[_KEY])
            rows = reader.read().to_pylist()
        arrays = {name: _joined(rows, name) for name in dict.fromkeys(r["name"] for r in rows)}
        fields = read_state(described["manifest"], arrays)
        whole = Rules(**fields).fingerprint == described["fingerprint"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: no such file; `convert` writes the encoder to its output folder"
        ) from None
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: the encoder file is incomplete or damaged ({first_line(error)}); convert the "
            "data again"
        ) from None
    if not whole:
        raise CheckpointError(f"{path}: the encoder is damaged; convert the data again")
    return fields


def _joined(rows: list[dict[str, Any]], name: str) -> Array:
    mine = [row for row in rows if row["name"] == name]
    return np.frombuffer(b"".join(row["data"] for row in mine), np.dtype(mine[0]["dtype"]))
