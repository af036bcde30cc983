# SPDX-License-Identifier: Apache-2.0
"""Saved encoders: a manifest and plain arrays, or one parquet file beside converted data.

Saved state is not trusted: the manifest is read by pydantic, and the type, shape and content of
each array is checked. The shares of rare values and the list of unsigned columns affect no id, so
digests omit them. Version 2 did not store the kinds of columns; see `older_state`. The parquet file
has arrays as rows and the manifest as metadata; page checksums protect the arrays, a digest
protects everything.

Arrays hold the values of all columns one after another; values of a shared table are stored once.
`number_starts` and `text_starts` (F + 1,) have the position at which each column begins. Texts are
UTF-8 bytes, split by `text_offsets`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.data.columns.category import Category, Settings, Values
from sparsetrain.data.columns.dense import dense_columns
from sparsetrain.data.columns.plain import LIMIT, PlainIds
from sparsetrain.data.columns.vocabulary import FIRST, Vocabulary
from sparsetrain.data.encode.older_state import of_version_2
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.schema.schema_file import fill
from sparsetrain.data.values.arrays import Array
from sparsetrain.errors import CheckpointError, ConfigError, first_line
from sparsetrain.parsing.identity import KINDS, WHOLE
from sparsetrain.system.file_locks import atomic_write

State = tuple[dict[str, Any], dict[str, Array]]
Fields = dict[str, Any]  # arguments of an encoder

_FORMAT, _VERSION, _OLDER = "sparsetrain.encoder", 3, 2


@dataclass(frozen=True)
class _Manifest:
    """Everything except the arrays; older encoders lack the keys with a default."""

    settings: Settings
    encoded: bool
    dense_columns: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[int, ...]
    layout: str
    schema: Schema
    bags: tuple[bool, ...]
    rare_shares: tuple[float | None, ...]
    unsigned: tuple[str, ...]
    kinds: tuple[str | None, ...] = ()
    hexadecimal: tuple[bool | None, ...] = ()  # only in version 2, like `wraps`
    wraps: bool = True


_OF_COLUMNS = ("rows", "bags", "rare_shares")
_ARRAYS = {"numbers", "number_ids", "number_starts"}
_ARRAYS |= {"texts", "text_offsets", "text_ids", "text_starts"}


def _fault(reason: str) -> CheckpointError:
    return CheckpointError(f"the saved encoder {reason}; take the encoder from a finished run")


def _expect(condition: bool, fault: str) -> None:
    """Refuse a saved encoder that has a fault."""
    if not condition:
        raise _fault(fault)


def write_manifest(fields: Fields) -> dict[str, Any]:
    """Return everything that decides a row's encoding except the columns' values."""
    schema, features = fields["schema"], fields["features"]
    known = [column.values for column in features] if all(c.rows for c in features) else []
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "settings": asdict(fields["settings"]),
        "encoded": fields["encoded"],
        "dense_columns": [c.name for c in fields["dense"] if c.name not in schema.inputs],
        "columns": [column.name for column in features],
        "rows": [values.rows for values in known],
        "layout": fields["layout"],
        "schema": schema.to_dict(),
        "bags": [column.is_bag for column in features],
        "kinds": [values.kind for values in known],
    }


def _write_arrays(features: Sequence[Category]) -> dict[str, Array]:
    """Return the values of all tables, a shared table's once; already encoded ids have none."""
    tables = [
        column.values if column.has_table else Vocabulary.blank(column.values.nan)
        for column in features
        if isinstance(column.values, Vocabulary)
    ]
    if not tables:
        return {}
    texts = [text for each in tables for text in each.texts]
    return {
        "numbers": np.concatenate([each.numbers for each in tables]),
        "number_ids": np.concatenate([each.number_ids for each in tables]),
        "number_starts": _starts([len(each.numbers) for each in tables]),
        "texts": np.frombuffer(b"".join(texts), dtype=np.uint8),
        "text_offsets": _starts([len(text) for text in texts]),
        "text_ids": np.concatenate([each.text_ids for each in tables]),
        "text_starts": _starts([len(each.texts) for each in tables]),
    }


def _starts(lengths: list[int]) -> Array:
    return np.cumsum([0, *lengths], dtype=np.int64)


def write_state(fields: Fields) -> State:
    """Return (manifest, arrays) of an encoder."""
    features = fields["features"]
    described = {
        "rare_shares": [column.values.rare_share for column in features],
        "unsigned": [column.name for column in features if column.is_unsigned],
    }
    return write_manifest(fields) | described, _write_arrays(features)


def fingerprint_of(fields: Fields) -> str:
    """Return a digest of everything that decides a row's encoding."""
    manifest, arrays = write_manifest(fields), _write_arrays(fields["features"])
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()[:32]


def read_state(manifest: Mapping[str, Any], arrays: Mapping[str, Array]) -> Fields:
    """Return the constructor arguments of the saved encoder."""
    _expect(
        isinstance(manifest, Mapping) and manifest.get("format") == _FORMAT, "is not an encoder's"
    )
    version = manifest.get("version")
    known = version in (_VERSION, _OLDER)
    _expect(known, f"has version {version!r}, but this program reads {_VERSION} and {_OLDER}")
    read, tables = _read_manifest(manifest)
    if read.encoded:
        _expect(not arrays, "has arrays that already encoded data does not need")
        values: Sequence[Values] = [PlainIds(n) for n in read.rows]
    else:
        values = _vocabularies(read, tables, arrays)
    by_name, rule = dict(zip(read.columns, values, strict=True)), read.schema.rule
    features = tuple(
        Category(name, table, by_name[table], rule(name), is_bag, name in read.unsigned)
        for name, table, is_bag in zip(read.columns, tables, read.bags, strict=True)
    )
    dense = dense_columns(read.dense_columns, read.encoded, read.settings, read.schema)
    same = {name: getattr(read, name) for name in ("settings", "encoded", "layout", "schema")}
    return {**same, "dense": dense, "features": features}


def _read_manifest(manifest: Mapping[str, Any]) -> tuple[_Manifest, tuple[str, ...]]:
    """Return the manifest, and the name of each column's table."""
    known = {
        field.name: manifest[field.name] for field in fields_of(_Manifest) if field.name in manifest
    }
    try:
        read = fill(known, _Manifest, "manifest")
        tables = read.schema.tables_of(read.columns)
    except ConfigError as error:
        raise CheckpointError(
            f"the saved encoder: {error}; take the encoder from a finished run"
        ) from None
    _expect(len(known["settings"]) == len(fields_of(Settings)), "lacks a setting")
    _expect(bool(read.columns), "has no columns")
    is_older = manifest["version"] == _OLDER
    _expect(not (is_older and read.kinds), "has kinds, which its version did not know")
    for name in (*_OF_COLUMNS, "hexadecimal" if is_older else "kinds"):
        fits = len(getattr(read, name)) == len(read.columns)
        _expect(fits, f"has more or fewer {name} than columns")
    least = 1 if read.encoded else FIRST
    _expect(all(least <= n <= LIMIT for n in read.rows), "has a table of impossible size")
    rows = dict(zip(read.columns, read.rows, strict=True))
    same = [rows[table] for table in tables] == [*read.rows]
    _expect(same, "has columns of one table with different numbers of rows")
    _expect({*read.unsigned} <= {*read.columns}, "names no columns in 'unsigned'")
    _expect(read.encoded or {*read.kinds} <= {*KINDS}, "names no kind in 'kinds'")
    shares = read.encoded or all(n is not None and 0 <= n <= 1 for n in read.rare_shares)
    _expect(shares, "has no shares in 'rare_shares'")
    return read, tables


def _vocabularies(
    read: _Manifest, tables: Sequence[str], arrays: Mapping[str, Array]
) -> list[Vocabulary]:
    """Return a vocabulary per column, empty if the column has no table of its own."""
    _expect(arrays.keys() == _ARRAYS, "has unknown or missing arrays")
    for name in sorted(_ARRAYS):
        array, dtype = arrays[name], np.uint8 if name == "texts" else np.int64
        fits = isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == 1
        _expect(fits, f"has an array {name!r} of a wrong type")
    whole, numbers = arrays["texts"].tobytes(), arrays["numbers"]
    cuts = _cut(arrays, "text_offsets", len(whole), len(arrays["text_offsets"]) - 1)
    texts = [whole[cut] for cut in cuts]
    for name, wanted in (("number_ids", len(numbers)), ("text_ids", len(texts))):
        _expect(len(arrays[name]) == wanted, f"has an array {name!r} of a wrong length")
    of_numbers = _cut(arrays, "number_starts", len(numbers), len(read.rows))
    of_texts = _cut(arrays, "text_starts", len(texts), len(read.rows))
    found, nan = [], read.settings.nan_rule
    for index, (some, own) in enumerate(zip(of_numbers, of_texts, strict=True)):
        keys = numbers[some].copy(), arrays["number_ids"][some].copy()
        words = tuple(texts[own]), arrays["text_ids"][own].copy()
        kind = (read.kinds[index] if read.kinds else None) or WHOLE
        made = Vocabulary(kind, *keys, *words, read.rows[index], nan, read.rare_shares[index])
        _check_values(made, has_table=tables[index] == read.columns[index])
        found.append(made if read.kinds else _with_kind(read, index, made))
    return found


def _cut(arrays: Mapping[str, Array], name: str, total: int, count: int) -> list[slice]:
    """Return `count` consecutive slices from 0 to `total`, by the starts in the array `name`."""
    starts = arrays[name]
    fits = len(starts) == count + 1 > 0 and starts[0] == 0 and starts[-1] == total
    _expect(bool(fits) and bool((np.diff(starts) >= 0).all()), f"has inconsistent {name!r}")
    return [slice(*pair) for pair in pairwise(starts.tolist())]


def _check_values(found: Vocabulary, has_table: bool) -> None:
    ids = np.concatenate([found.number_ids, found.text_ids])
    fits = bool(((ids >= FIRST) & (ids < found.rows)).all())
    _expect(fits, "gives a value a row outside its table")
    distinct = len(np.unique(found.numbers)) + len({*found.texts})
    _expect(distinct == len(ids), "has one value twice in a column")
    _expect(has_table or not len(ids), "has values of a column without a table of its own")


def _with_kind(read: _Manifest, index: int, older: Vocabulary) -> Vocabulary:
    """Return a vocabulary with its kind, which version 2 did not store."""
    found = of_version_2(older, read.hexadecimal[index], read.wraps)
    if found is None:
        name = read.columns[index]
        raise CheckpointError(
            f"the saved encoder was made by an older version, which read {name!r} in two "
            "ways, as decimal or as hexadecimal numbers: fit the encoder again"
        )
    return found


ENCODER_FILE = "_encoder.parquet"
_KEY = b"sparsetrain.encoder"
_SCHEMA = pa.schema([("name", pa.string()), ("dtype", pa.string()), ("data", pa.large_binary())])
_CHUNK = 1 << 24  # bytes of an array in one row


def write_file(path: Path, fields: Fields) -> None:
    """Write an encoder; the file appears complete or not at all."""
    manifest, arrays = write_state(fields)
    described = json.dumps({"manifest": manifest, "fingerprint": fingerprint_of(fields)})
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
        if described["manifest"]["version"] == _OLDER:
            raise CheckpointError(f"{path}: written by an older version; convert the data again")
        fields = read_state(described["manifest"], arrays)
        whole = fingerprint_of(fields) == described["fingerprint"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: no such file; `convert` writes the encoder to its output folder"
        ) from None
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
