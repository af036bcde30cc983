# SPDX-License-Identifier: Apache-2.0
"""The same small Criteo-like rows in every layout of files, and how to compare batches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.data import Batch

INT, TEXT = pa.int32(), pa.string()
ROWS = 60
NUM_DENSE, NUM_CATEGORIES = 3, 4
_HEX = ["ffffffff", "00000000", "0000007b", "68fd1e64", "80000000", "7fffffff", None]


def make_rows(seed: int = 0) -> dict[str, list]:
    """Return columns of Python values under Criteo's names; None is missing."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list] = {"label": rng.integers(0, 2, ROWS).tolist()}
    for index in range(NUM_DENSE):
        values = rng.integers(-3, 20_000, ROWS).tolist()
        columns[f"I{index + 1}"] = [None if rng.random() < 0.3 else value for value in values]
    for index in range(NUM_CATEGORIES):
        picks = np.minimum(rng.geometric(0.3, ROWS) - 1, len(_HEX) - 1)
        columns[f"C{index + 1}"] = [_HEX[(pick + index) % len(_HEX)] for pick in picks]
    return columns


def dense_names() -> list[str]:
    return [f"I{index + 1}" for index in range(NUM_DENSE)]


def category_names() -> list[str]:
    return [f"C{index + 1}" for index in range(NUM_CATEGORIES)]


def table(columns: dict[str, list], dense=INT, category=TEXT, label=INT) -> pa.Table:
    """Return the columns with Arrow types of choice, as Kaggle's files have them by default."""
    types = {"label": label} | dict.fromkeys(dense_names(), dense)
    types |= dict.fromkeys(category_names(), category)
    return pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})


def _hashes(columns: dict[str, list], wrap: int = 0) -> dict[str, list]:
    """Return the columns with categories as numbers, those above `wrap` (if given) negative."""

    def number(text):
        value = int(text, 16)
        return value - 2**32 if wrap and value >= wrap else value

    return columns | {
        name: [None if text is None else number(text) for text in columns[name]]
        for name in category_names()
    }


def _torchrec(columns):
    names = dict(zip(dense_names(), (f"int_{i}" for i in range(NUM_DENSE)), strict=True))
    names |= dict(zip(category_names(), (f"cat_{i}" for i in range(NUM_CATEGORIES)), strict=True))
    found = table(_hashes(columns), category=pa.int64())
    return found.rename_columns([names.get(name, name) for name in found.column_names])


def _all_text(columns):
    texts = {name: ["" if v is None else str(v) for v in vs] for name, vs in columns.items()}
    return table(texts, pa.string(), pa.string(), pa.string()).rename_columns(
        ["Label" if name == "label" else name for name in texts]
    )


def _dictionary(columns):
    plain = table(columns)
    return pa.table({name: plain[name].dictionary_encode() for name in plain.column_names})


def _shuffled_columns(columns):
    plain = table(columns).append_column("weekday", pa.array(["mon"] * ROWS))
    return plain.select(sorted(plain.column_names, reverse=True))


class ArrowFrame:
    """What polars and DuckDB give: no table of Arrow's own, but one can be had without copying."""

    def __init__(self, found: pa.Table) -> None:
        self._found = found

    def __arrow_c_stream__(self, requested_schema=None):
        return self._found.__arrow_c_stream__(requested_schema)


LAYOUTS = {
    "text": table,
    "large text": lambda columns: table(columns, category=pa.large_string()),
    "text views": lambda columns: table(columns, category=pa.string_view()),
    "binary": lambda columns: table(columns, category=pa.binary()),
    "dictionaries": _dictionary,
    "int64 hashes under torchrec's names": _torchrec,
    "int32 hashes": lambda columns: table(_hashes(columns, 2**31), category=pa.int32()),
    "uint32 hashes": lambda columns: table(_hashes(columns), category=pa.uint32()),
    "dictionaries of int64": lambda columns: table(
        _hashes(columns), category=pa.dictionary(pa.int32(), pa.int64())
    ),
    "integers stored as floats": lambda columns: table(
        _hashes(columns), pa.float64(), pa.float64(), pa.float32()
    ),
    "bool labels": lambda columns: table(
        columns | {"label": [value == 1 for value in columns["label"]]}, label=pa.bool_()
    ),
    "all text": _all_text,
    "another order and a column too many": _shuffled_columns,
    "a DataFrame": lambda columns: table(columns).to_pandas(),
    "a DataFrame of numbers": lambda columns: table(
        _hashes(columns), category=pa.int64()
    ).to_pandas(),
    "a dict of lists": lambda columns: columns,
    "a record batch": lambda columns: table(columns).combine_chunks().to_batches()[0],
    "a frame that exports an Arrow stream": lambda columns: ArrowFrame(table(columns)),
    "a sliced table": lambda columns: pa.concat_tables([table(columns)] * 2).slice(ROWS // 2, ROWS),
}


def encoded_table(rows: int = ROWS, seed: int = 0, integer=INT) -> pa.Table:
    """Return an already encoded table: float32 dense and label, integer ids below 10."""
    rng = np.random.default_rng(seed)
    columns = {"label": pa.array(rng.integers(0, 2, rows).astype(np.float32))}
    columns |= {name: pa.array(rng.random(rows, dtype=np.float32)) for name in dense_names()}
    columns |= {
        name: pa.array(rng.integers(0, 10, rows).tolist(), integer) for name in category_names()
    }
    return pa.table(columns)


def write(path, found: pa.Table, group: int = 16) -> str:
    """Write a table with row groups of `group` rows and page checksums; return the path."""
    pq.write_table(found, path, row_group_size=group, write_page_checksum=True)
    return str(path)


def assert_batches_equal(actual: Batch, expected: Batch) -> None:
    """Compare two batches bit for bit, types included."""
    for name in ("dense", "ids", "labels"):
        left, right = getattr(actual, name), getattr(expected, name)
        if right is None:
            assert left is None, name
            continue
        assert (left.dtype, left.shape) == (right.dtype, right.shape), name
        np.testing.assert_array_equal(left, right, err_msg=name)


def joined(batches) -> Batch:
    """Return one batch of the rows of several."""
    batches = list(batches)
    labels = None if batches[0].labels is None else np.concatenate([b.labels for b in batches])
    return Batch(
        np.concatenate([b.dense for b in batches]), np.concatenate([b.ids for b in batches]), labels
    )
