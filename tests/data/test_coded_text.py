# SPDX-License-Identifier: Apache-2.0
"""Text that parquet stores as codes into a dictionary gives the ids of text that it spells out."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain.data.read.parquet import parquet_parts
from sparsetrain.data.read.source import CODED_ROWS

ROWS = 300
STORED = {
    "with dictionaries": {"use_dictionary": True},
    "spelt out": {"use_dictionary": False},
    "with dictionaries that end too early": {
        "dictionary_pagesize_limit": 64,
        "data_page_size": 128,
    },
    "in row groups of unlike dictionaries": {"row_group_size": 70},
}


def table(rows: int) -> pa.Table:
    """Hex text, words and nulls, in columns of few and of many values."""
    rng = np.random.default_rng(0)
    few, many = rng.integers(0, 9, rows), rng.integers(0, 10 * rows, rows)
    return pa.table(
        {
            "label": rng.integers(0, 2, rows),
            **{f"I{n}": rng.integers(0, 50, rows) for n in range(1, 14)},
            "C1": [None if n == 4 else f"{n:08x}" for n in few],
            "C2": ["" if n % 7 == 0 else f"{n:x}" for n in many],
            **{f"C{n}": [f"word {n}" for n in few] for n in range(3, 27)},
        }
    )


def ids(source, encoder) -> np.ndarray:
    batches = st.data.Dataset(source, encoder).batches(64, seed=1)
    return np.concatenate([batch.ids for batch in batches])


@pytest.mark.parametrize("options", STORED.values(), ids=STORED)
def test_ids_do_not_depend_on_how_text_is_stored(options, tmp_path):
    rows = table(ROWS)
    encoder = st.data.Encoder.fit(rows)
    plain, stored = tmp_path / "plain.parquet", tmp_path / "stored.parquet"
    size = options.get("row_group_size", ROWS)
    pq.write_table(rows, plain, use_dictionary=False, row_group_size=size)
    pq.write_table(rows, stored, **options)
    expected = [encoder.encode(rows.slice(first, size)).ids for first in range(0, ROWS, size)]
    found = st.data.Dataset(stored, encoder).batches(ROWS)
    np.testing.assert_array_equal(
        np.concatenate([batch.ids for batch in found]), np.concatenate(expected)
    )
    np.testing.assert_array_equal(ids(stored, encoder), ids(plain, encoder))


def test_a_row_group_of_several_pieces_is_read_whole(tmp_path):
    which = np.arange(CODED_ROWS + 5) % 100
    rows = table(100).take(which)
    file = tmp_path / "rows.parquet"
    pq.write_table(rows, file, row_group_size=len(rows))
    encoder = st.data.Encoder.fit(rows.slice(0, 100))
    (batch,) = st.data.Dataset(file, encoder).batches(len(rows))
    np.testing.assert_array_equal(batch.ids, encoder.encode(table(100)).ids[which])


@pytest.mark.parametrize("different, is_dictionary", [(100, True), (100_000, False)])
def test_large_dictionaries_are_not_looked_up_with_every_piece(different, is_dictionary, tmp_path):
    rng, file = np.random.default_rng(0), tmp_path / "rows.parquet"
    words = pa.array([rng.bytes(16).hex() for _ in range(different)])
    table = pa.table({"C1": words.take(np.arange(100_000) % different)})
    pq.write_table(table, file, dictionary_pagesize_limit=1 << 28)
    (part,) = parquet_parts(str(file))
    pieces = [piece.column(0) for _, piece in part.pieces(["C1"], ["C1"])]
    assert [pa.types.is_dictionary(piece.type) for piece in pieces] == len(pieces) * [is_dictionary]
    assert sum(map(len, pieces)) == 100_000
