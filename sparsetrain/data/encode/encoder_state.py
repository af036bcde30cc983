# SPDX-License-Identifier: Apache-2.0
"""Saved encoders: a manifest and plain arrays, or one parquet file beside converted data.

The vocabularies of all columns are concatenated; `number_starts` and `text_starts` (F + 1,) hold
where each column begins. Texts are UTF-8 bytes, split by `text_offsets`. Saved state is not
trusted: the type, shape and content of each array is checked before use. The shares of rare values
and the unsigned columns affect no id and are in no digest. A shared table is stored once. Encoders
that do not say `wraps` took each int32 for the hash of its bits, and do so on.

In the file, arrays are rows and the manifest is metadata; page checksums guard the arrays, a digest
guards the whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.data.atomic_write import atomic_write
from sparsetrain.data.encode.rules import LIMIT, CategoryRule, PlainIds, Rules, Settings
from sparsetrain.data.encode.vocabulary import FIRST, Vocabulary
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.shared_tables import owners_of
from sparsetrain.data.values.arrays import Array
from sparsetrain.errors import CheckpointError, SparsetrainError, first_line

State = tuple[dict[str, Any], dict[str, Array]]

_FORMAT, _VERSION = "sparsetrain.encoder", 2

_MANIFEST: dict[str, type] = {
    "settings": dict,
    "encoded": bool,
    "dense_columns": list,
    "columns": list,
    "rows": list,
    "layout": str,
    "schema": dict,
    "bags": list,
    "hexadecimal": list,
    "rare_shares": list,
    "unsigned": list,
}
_SETTINGS: dict[str, tuple[type, ...]] = {
    "min_count": (int,),
    "max_rows": (int, type(None)),
    "dense_fill": (float, int),
    "missing_flags": (bool,),
    "nan": (str,),
    "treat_as": (str,),
}
_ARRAYS = {
    "numbers": np.int64,
    "number_ids": np.int64,
    "number_starts": np.int64,
    "texts": np.uint8,
    "text_offsets": np.int64,
    "text_ids": np.int64,
    "text_starts": np.int64,
}
_NONE = np.zeros(0, np.int64)
_NO_VALUES: dict[str, Any] = {"numbers": _NONE, "number_ids": _NONE, "texts": (), "text_ids": _NONE}


def write_state(rules: Rules) -> State:
    """Return (manifest, arrays); already encoded data needs no arrays."""
    wraps = any(getattr(rule, "wraps", False) for rule in rules.categories)
    described = {
        "rare_shares": rules.rare_shares,
        "unsigned": list(rules.unsigned),
        "wraps": wraps,
    }
    return write_manifest(rules) | described, _write_arrays(rules)


def write_manifest(rules: Rules) -> dict[str, Any]:
    """Return all that decides what a row becomes but the values of the columns."""
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "settings": asdict(rules.settings),
        "encoded": rules.encoded,
        "dense_columns": list(rules.dense_columns),
        "columns": list(rules.columns),
        "rows": rules.rows,
        "layout": rules.layout,
        "schema": rules.schema.to_dict(),
        "bags": list(rules.bags),
        "hexadecimal": [rule.hexadecimal for rule in rules.categories],
    }


def _write_arrays(rules: Rules) -> dict[str, Array]:
    if rules.encoded:
        return {}
    categories: Any = _written(rules)
    texts = [text for rule in categories for text in rule.texts]
    return {
        "numbers": np.concatenate([rule.numbers for rule in categories]),
        "number_ids": np.concatenate([rule.number_ids for rule in categories]),
        "number_starts": _starts([len(rule.numbers) for rule in categories]),
        "texts": np.frombuffer(b"".join(texts), dtype=np.uint8),
        "text_offsets": _starts([len(text) for text in texts]),
        "text_ids": np.concatenate([rule.text_ids for rule in categories]),
        "text_starts": _starts([len(rule.texts) for rule in categories]),
    }


def _written(rules: Rules) -> list[Any]:
    """Return what is written of each column: of one that shares a table, no values."""
    return [
        rule if owner == index else replace(rule, **_NO_VALUES)
        for index, (rule, owner) in enumerate(zip(rules.categories, rules.owners, strict=True))
    ]


def _starts(lengths: list[int]) -> Array:
    return np.cumsum([0, *lengths], dtype=np.int64)


def fingerprint_of(rules: Rules) -> str:
    """Return a digest of everything that decides what a row becomes."""
    manifest, arrays = write_manifest(rules), _write_arrays(rules)
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()[:32]


def read_state(manifest: Mapping[str, Any], arrays: Mapping[str, Array]) -> Rules:
    """Return the rules that were written."""
    _expect(
        isinstance(manifest, Mapping) and manifest.get("format") == _FORMAT, "is not an encoder's"
    )
    version = manifest.get("version")
    _expect(version == _VERSION, f"has version {version!r}, this program reads {_VERSION}")
    for name, type_ in _MANIFEST.items():
        _expect(type(manifest.get(name)) is type_, f"lacks {name!r} as a {type_.__name__}")
    settings = _read_settings(manifest["settings"])
    dense, columns = (_read_names(manifest, name) for name in ("dense_columns", "columns"))
    _expect(bool(columns), "has no names in 'columns'")
    rows = manifest["rows"]
    _expect(len(rows) == len(columns), "has another number of rows than of columns")
    least = 1 if manifest["encoded"] else FIRST
    _expect(
        all(type(n) is int and least <= n <= LIMIT for n in rows), "has a table of impossible size"
    )
    bags = manifest["bags"]
    fits = len(bags) == len(columns) and all(type(is_bag) is bool for is_bag in bags)
    _expect(fits, "does not say which columns hold lists")
    rare, unsigned = _read_rare_shares(manifest), manifest["unsigned"]
    _expect(all(name in columns for name in unsigned), "names no columns in 'unsigned'")
    categories: Sequence[CategoryRule]
    if manifest["encoded"]:
        _expect(not arrays, "has arrays that already encoded data does not need")
        categories = [PlainIds(n) for n in rows]
    else:
        wraps = manifest.get("wraps", True)
        _expect(type(wraps) is bool, "does not say whether numbers wrap")
        found = _read_vocabularies(rows, arrays, settings, rare, _read_hexadecimal(manifest))
        categories = [replace(rule, wraps=wraps) for rule in found]
    with _refused():
        schema = Schema.from_dict(manifest["schema"])
    return Rules(
        settings,
        manifest["encoded"],
        dense,
        columns,
        _shared(categories, columns, schema),
        manifest["layout"],
        schema,
        tuple(bags),
        tuple(unsigned),
    )


def _shared(
    categories: Sequence[CategoryRule], columns: Sequence[str], schema: Schema
) -> tuple[CategoryRule, ...]:
    """Give columns that share a table the one rule that was written of them."""
    with _refused():
        owners = owners_of(columns, schema.share_embedding)
    for index, owner in enumerate(owners):
        own, its = categories[index], categories[owner]
        _expect(own.rows == its.rows, "has columns of one table with other numbers of rows")
        values = isinstance(own, Vocabulary) and len(own.numbers) + len(own.texts)
        _expect(owner == index or not values, "has values of a column without a table of its own")
    return tuple(categories[owner] for owner in owners)


def _expect(condition: bool, fault: str) -> None:
    if not condition:
        raise CheckpointError(f"the saved encoder {fault}; take it from a finished run")


@contextmanager
def _refused() -> Iterator[None]:
    """Say of what a setting or a schema refuses that it is saved so."""
    try:
        yield
    except SparsetrainError as error:
        raise CheckpointError(f"the saved encoder: {error}") from None


def _read_settings(values: dict[str, Any]) -> Settings:
    _expect(values.keys() == _SETTINGS.keys(), "has other settings than this program knows")
    for name, types in _SETTINGS.items():
        _expect(type(values[name]) in types, f"has a setting {name!r} of another type")
    with _refused():
        return Settings(**values)


def _read_names(manifest: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = manifest[key]
    _expect(all(type(name) is str for name in names), f"has no names in {key!r}")
    return tuple(names)


def _read_rare_shares(manifest: Mapping[str, Any]) -> list[float | None]:
    """Return the share of rare values of each column; None for already encoded ones."""
    shares: list[Any] = manifest["rare_shares"]
    fits = len(shares) == len(manifest["columns"])
    _expect(fits, "does not fit its columns in 'rare_shares'")
    if manifest["encoded"]:
        return shares
    fits = all(type(share) in (int, float) and 0 <= share <= 1 for share in shares)
    _expect(fits, "has no shares in 'rare_shares'")
    return shares


def _read_hexadecimal(manifest: Mapping[str, Any]) -> list[bool | None]:
    """Return how each column reads text of 8 digits."""
    found = manifest["hexadecimal"]
    fits = len(found) == len(manifest["columns"])
    _expect(
        fits and all(v in (True, False, None) for v in found), "does not say what is hexadecimal"
    )
    return list(found)


def _read_vocabularies(
    rows: list[int],
    arrays: Mapping[str, Array],
    settings: Settings,
    rare: list[float | None],
    hexadecimal: list[bool | None],
) -> tuple[Vocabulary, ...]:
    _expect(arrays.keys() == _ARRAYS.keys(), "has other arrays than this program knows")
    for name, dtype in _ARRAYS.items():
        array = arrays[name]
        fits = isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == 1
        _expect(fits, f"has an array {name!r} of another type")
    texts = _read_texts(arrays)
    numbers = _cut(arrays["number_starts"], len(arrays["numbers"]), len(rows), "number_starts")
    text_cuts = _cut(arrays["text_starts"], len(texts), len(rows), "text_starts")
    for name, wanted in (("number_ids", len(arrays["numbers"])), ("text_ids", len(texts))):
        _expect(len(arrays[name]) == wanted, f"has an array {name!r} of another length")
    return tuple(
        replace(
            _read_vocabulary(n, arrays, texts, number_cut, text_cut, settings, share),
            hexadecimal=is_hex,
        )
        for n, number_cut, text_cut, share, is_hex in zip(
            rows, numbers, text_cuts, rare, hexadecimal, strict=True
        )
    )


def _read_texts(arrays: Mapping[str, Array]) -> list[bytes]:
    offsets, whole = arrays["text_offsets"], arrays["texts"].tobytes()
    cuts = _cut(offsets, len(whole), len(offsets) - 1, "text_offsets")
    return [whole[cut] for cut in cuts]


def _cut(starts: Array, total: int, count: int, name: str) -> list[slice]:
    """Return `count` slices that follow one another from 0 to `total`."""
    fits = len(starts) == count + 1 > 0 and starts[0] == 0 and starts[-1] == total
    _expect(bool(fits) and bool((np.diff(starts) >= 0).all()), f"has inconsistent {name!r}")
    return [slice(*pair) for pair in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]


def _read_vocabulary(
    rows: int,
    arrays: Mapping[str, Array],
    texts: list[bytes],
    number_cut: slice,
    text_cut: slice,
    settings: Settings,
    rare: float | None,
) -> Vocabulary:
    numbers, number_ids = (arrays[name][number_cut].copy() for name in ("numbers", "number_ids"))
    own_texts, text_ids = tuple(texts[text_cut]), arrays["text_ids"][text_cut].copy()
    ids = np.concatenate([number_ids, text_ids])
    _expect(bool(((ids >= FIRST) & (ids < rows)).all()), "gives a value a row outside its table")
    distinct = len(np.unique(numbers)) == len(numbers) and len(set(own_texts)) == len(own_texts)
    _expect(distinct, "has one value twice in a column")
    return Vocabulary(numbers, number_ids, own_texts, text_ids, rows, settings.nan_rule, rare)


ENCODER_FILE = "_encoder.parquet"
_KEY = b"sparsetrain.encoder"
_SCHEMA = pa.schema([("name", pa.string()), ("dtype", pa.string()), ("data", pa.large_binary())])
_CHUNK = 1 << 24  # bytes of an array in one row


def write_encoder(path: Path, rules: Rules) -> None:
    """Write an encoder; the file appears whole or not at all."""
    manifest, arrays = write_state(rules)
    described = json.dumps({"manifest": manifest, "fingerprint": fingerprint_of(rules)})
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


def read_rules(path: Path) -> Rules:
    """Read what `write_encoder` wrote."""
    try:
        with (
            open(path, "rb") as file,
            pq.ParquetFile(file, page_checksum_verification=True) as reader,
        ):
            described = json.loads(reader.schema_arrow.metadata[_KEY])
            rows = reader.read().to_pylist()
        arrays = {name: _joined(rows, name) for name in dict.fromkeys(r["name"] for r in rows)}
        rules = read_state(described["manifest"], arrays)
        whole = fingerprint_of(rules) == described["fingerprint"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: no such file; an encoder lies in a folder that `convert` wrote"
        ) from None
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: not a whole encoder file ({first_line(error)})") from None
    if not whole:
        raise CheckpointError(f"{path}: the encoder is damaged; convert the data again")
    return rules


def _joined(rows: list[dict[str, Any]], name: str) -> Array:
    mine = [row for row in rows if row["name"] == name]
    return np.frombuffer(b"".join(row["data"] for row in mine), np.dtype(mine[0]["dtype"]))
