# SPDX-License-Identifier: Apache-2.0
"""Pieces of parquet are bounded by bytes, whatever the few bytes on disk say."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Encoder, Schema, infer, open_source
from sparsetrain.data.read import parquet
from sparsetrain.data.read.parquet import _PIECE_BYTES
from sparsetrain.errors import DataError

SCHEMA = Schema("y", (), ("c",))
LONG = "x" * (1 << 17)
ROWS = 1 << 12  # 512 MiB of text
COLUMNS = {
    "a dictionary": pa.DictionaryArray.from_arrays(np.zeros(ROWS, np.int32), [LONG]),
    "a dictionary of a long text among short ones": pa.DictionaryArray.from_arrays(
        np.full(ROWS, 2, np.int32), ["a", "b", LONG]
    ),
    "lists": pa.ListArray.from_arrays(
        np.arange(0, 2 * ROWS + 1, 2, dtype=np.int32),
        pa.DictionaryArray.from_arrays(np.zeros(2 * ROWS, np.int32), [LONG]),
    ),
}


@pytest.fixture(params=COLUMNS)
def path(request, tmp_path):
    column = COLUMNS[request.param]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"y": [0] * ROWS, "c": column}), path, compression="zstd")
    assert path.stat().st_size < 100_000
    return path


def pieces(path):
    for part in open_source(path, SCHEMA).parts:
        yield from (piece for _, piece in part.pieces(["y", "c"]))


def test_a_piece_of_long_texts_has_few_rows(path):
    rows = 0
    for piece in pieces(path):
        rows += piece.num_rows
        assert piece.nbytes <= 2 * _PIECE_BYTES
    assert rows == ROWS


def test_plain_long_texts_are_read_in_small_pieces_too(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"y": [0] * 1024, "c": [LONG] * 1024})
    pq.write_table(table, path, use_dictionary=False, write_batch_size=64)
    assert max(piece.nbytes for piece in pieces(path)) <= 2 * _PIECE_BYTES
    assert "c" in infer(path, "y", categories=["c"]).schema.wanted
    assert Encoder.fit(path, schema=SCHEMA, min_count=1).rows == [3]


@pytest.mark.parametrize("lists", [False, True], ids=["texts", "lists"])
def test_texts_that_share_their_beginnings_are_read_in_small_pieces(tmp_path, lists):
    path = tmp_path / "a.parquet"
    column = pa.array([[LONG] if lists else LONG] * 2000)
    encoding = {"c.list.element" if lists else "c": "DELTA_BYTE_ARRAY"}
    pq.write_table(
        pa.table({"y": [0] * 2000, "c": column}),
        path,
        use_dictionary=False,
        column_encoding=encoding,
        write_batch_size=64,
    )
    assert path.stat().st_size < 10_000_000
    found = [(piece.num_rows, piece.nbytes) for piece in pieces(path)]
    assert sum(rows for rows, _ in found) == 2000
    assert max(size for _, size in found) <= 1.1 * _PIECE_BYTES


def test_pieces_of_short_texts_that_share_their_beginnings_grow(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"y": [0] * 60_000, "c": [f"value {i % 9999}" for i in range(60_000)]})
    encoding = {"c": "DELTA_BYTE_ARRAY"}
    pq.write_table(table, path, use_dictionary=False, column_encoding=encoding)
    found = [*pieces(path)]
    assert [piece.num_rows for piece in found][:9] == [4**n for n in range(7)] + [16_384] * 2
    assert pa.Table.from_batches(found)["c"].equals(table["c"])


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY"])
def test_pieces_after_one_that_was_too_large_are_small(tmp_path, monkeypatch, encoding):
    """In the mean of its row group, and before the first long one, a text is short."""
    monkeypatch.setattr(parquet, "_PIECE_BYTES", 1 << 20)
    path = tmp_path / "a.parquet"
    texts = ["a"] * 100_000 + ["x" * 4096] * 40_000
    table = pa.table({"y": [0] * len(texts), "c": texts})
    encodings = {"c": encoding}
    pq.write_table(table, path, use_dictionary=False, column_encoding=encodings)
    large = [piece.nbytes > 1.1 * (1 << 20) for piece in pieces(path)]
    assert not any(large[large.index(True) + 2 :])  # the first has short ones too


def test_pieces_of_short_texts_are_as_long_as_ever(tmp_path):
    path = tmp_path / "a.parquet"
    texts = [f"value {i % 9999}" for i in range(40_000)]
    pq.write_table(pa.table({"y": [0] * 40_000, "c": texts, "n": range(40_000)}), path)
    assert [piece.num_rows for piece in pieces(path)] == [16_384, 16_384, 7_232]


def test_a_name_in_the_footer_that_is_not_utf8_is_damage(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"y": [0], "käse": ["a"]}), path, store_schema=False)
    whole = path.read_bytes()
    for damaged in (b"k\xf3\xa4se", b"k\xc3\xf4se"):
        path.write_bytes(whole.replace("käse".encode(), damaged))
        for read in (pieces, lambda path: infer(path, "y"), Encoder.fit):
            with pytest.raises(DataError, match="a.parquet: the parquet footer is damaged"):
                list(read(path))
