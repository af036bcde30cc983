# SPDX-License-Identifier: Apache-2.0
"""Saved encoders: a manifest and plain arrays, or one parquet file beside converted data.

Saved state is not trusted. The shares of rare values and the unsigned columns affect no id, so
digests omit them. A shared table is stored once. Version 2 had no kinds of columns: see
`older_state`. The parquet file has arrays as rows and the manifest as metadata; page checksums
protect the arrays, a digest protects everything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.data.atomic_write import atomic_write
from sparsetrain.data.columns.category import Category, Settings, Values
from sparsetrain.data.columns.dense import dense_columns
from sparsetrain.data.columns.plain import LIMIT, PlainIds
from sparsetrain.data.columns.saved_vocabularies import (
    expect,
    load_vocabularies,
    save_vocabularies,
)
from sparsetrain.data.columns.vocabulary import FIRST, Vocabulary
from sparsetrain.data.encode.older_state import of_version_2
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.schema.schema_file import fill
from sparsetrain.data.shared_tables import owners_of
from sparsetrain.data.values.arrays import Array
from sparsetrain.errors import CheckpointError, ConfigError, first_line
from sparsetrain.parsing.identity import KINDS, WHOLE

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
    """Return the values of each table, once if columns share it; ids need no arrays."""
    tables = [
        column.values if column.has_table else Vocabulary.blank(column.values.nan)
        for column in features
        if isinstance(column.values, Vocabulary)
    ]
    return save_vocabularies(tables) if tables else {}


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
    expect(
        isinstance(manifest, Mapping) and manifest.get("format") == _FORMAT, "is not an encoder's"
    )
    version = manifest.get("version")
    known = version in (_VERSION, _OLDER)
    expect(known, f"has version {version!r}, this program reads {_VERSION} and {_OLDER}")
    read, owners = _read_manifest(manifest)
    if read.encoded:
        expect(not arrays, "has arrays that already encoded data does not need")
        values: Sequence[Values] = [PlainIds(n) for n in read.rows]
    else:
        values = _vocabularies(read, owners, arrays)
    share, rule = read.schema.share_embedding, read.schema.rule
    features = tuple(
        Category(name, share.get(name, name), own, rule(name), is_bag, name in read.unsigned)
        for name, is_bag, own in zip(
            read.columns, read.bags, (values[owner] for owner in owners), strict=True
        )
    )
    dense = dense_columns(read.dense_columns, read.encoded, read.settings, read.schema)
    same = {name: getattr(read, name) for name in ("settings", "encoded", "layout", "schema")}
    return {**same, "dense": dense, "features": features}


def _read_manifest(manifest: Mapping[str, Any]) -> tuple[_Manifest, tuple[int, ...]]:
    """Return the manifest, and for each column the owner of its table."""
    known = {
        field.name: manifest[field.name] for field in fields_of(_Manifest) if field.name in manifest
    }
    try:
        read = fill(known, _Manifest, "manifest")
        owners = owners_of(read.columns, read.schema.share_embedding)
    except ConfigError as error:
        raise CheckpointError(f"the saved encoder: {error}; take it from a finished run") from None
    expect(len(known["settings"]) == len(fields_of(Settings)), "lacks a setting")
    expect(bool(read.columns), "has no columns")
    is_older = manifest["version"] == _OLDER
    expect(not (is_older and read.kinds), "has kinds, which its version did not know")
    for name in (*_OF_COLUMNS, "hexadecimal" if is_older else "kinds"):
        fits = len(getattr(read, name)) == len(read.columns)
        expect(fits, f"has more or fewer {name} than columns")
    least = 1 if read.encoded else FIRST
    expect(all(least <= n <= LIMIT for n in read.rows), "has a table of impossible size")
    same = all(read.rows[owner] == rows for owner, rows in zip(owners, read.rows, strict=True))
    expect(same, "has columns of one table with different numbers of rows")
    expect({*read.unsigned} <= {*read.columns}, "names no columns in 'unsigned'")
    expect(read.encoded or {*read.kinds} <= {*KINDS}, "names no kind in 'kinds'")
    shares = read.encoded or all(n is not None and 0 <= n <= 1 for n in read.rare_shares)
    expect(shares, "has no shares in 'rare_shares'")
    return read, owners


def _vocabularies(
    read: _Manifest, owners: Sequence[int], arrays: Mapping[str, Array]
) -> list[Vocabulary]:
    kinds = [kind or WHOLE for kind in read.kinds] or [WHOLE] * len(read.rows)
    nan = read.settings.nan_rule
    found = load_vocabularies(arrays, kinds, read.rows, read.rare_shares, nan)
    found = [_of_kind(read, index, vocabulary) for index, vocabulary in enumerate(found)]
    for index, (rule, owner) in enumerate(zip(found, owners, strict=True)):
        fits = owner == index or not (len(rule.numbers) or rule.texts)
        expect(fits, "has values of a column without a table of its own")
    return found


def _of_kind(read: _Manifest, index: int, vocabulary: Vocabulary) -> Vocabulary:
    """Return a vocabulary with its kind, which version 2 did not store."""
    if read.kinds:
        return vocabulary
    found = of_version_2(vocabulary, read.hexadecimal[index], read.wraps)
    name = read.columns[index]
    advice = f"was made by an older version, which read {name!r} in two ways: fit it again"
    expect(found is not None, advice)
    assert found is not None
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
    """Return the constructor arguments of the encoder in a file of `write_file`.

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
        raise CheckpointError(f"{path}: not a whole encoder file ({first_line(error)})") from None
    if not whole:
        raise CheckpointError(f"{path}: the encoder is damaged; convert the data again")
    return fields


def _joined(rows: list[dict[str, Any]], name: str) -> Array:
    mine = [row for row in rows if row["name"] == name]
    return np.frombuffer(b"".join(row["data"] for row in mine), np.dtype(mine[0]["dtype"]))
