# SPDX-License-Identifier: Apache-2.0
"""The order of rows: resumed anywhere, and the same for any number of workers."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Batch, Dataset, Encoder, Position
from sparsetrain.data.encode.reader import Reader
from sparsetrain.data.read import parquet
from sparsetrain.data.stream import dataset as stream
from sparsetrain.errors import CheckpointError, DataError
from tests.data.criteo_tables import assert_batches_equal, encoded_table, make_rows, table, write

WIDE = 1000


@pytest.fixture
def dataset(tmp_path):
    found = encoded_table(WIDE)
    path = write(tmp_path / "rows.parquet", found, group=64)
    return Dataset(path, Encoder.fit(path, treat_as="encoded"))


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("size, stop", [(48, 0), (48, 7), (50, 19), (333, 1), (64, 14)])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_reading_goes_on_from_a_saved_position(dataset, seed, size, stop, prefetch):
    options = {"seed": seed, "buffer_rows": 150, "prefetch": prefetch}
    batches = list(dataset.batches(size, epoch=1, **options))
    position = Position.from_dict(batches[stop].position.to_dict())
    rest = list(dataset.batches(size, position=position, **options))
    if stop + 1 < len(batches):
        assert len(rest) == len(batches) - stop - 1
        for found, expected in zip(rest, batches[stop + 1 :], strict=True):
            assert_batches_equal(found, expected)
            assert found.position == expected.position
    else:
        assert position == Position(2)


def test_after_the_last_batch_comes_the_next_epoch(dataset):
    assert list(dataset.batches(300, epoch=4))[-1].position == Position(5)


def test_the_batch_size_may_change_on_the_way(dataset):
    first = next(dataset.batches(100, seed=0))
    rest = np.concatenate([b.ids for b in dataset.batches(90, seed=0, position=first.position)])
    whole = np.concatenate([b.ids for b in dataset.batches(WIDE, seed=0)])
    np.testing.assert_array_equal(np.concatenate([first.ids, rest]), whole)


def test_a_skipped_row_group_is_not_read(dataset, monkeypatch):
    read = []
    monkeypatch.setattr(Dataset, "_part", lambda self, index: read.append(index) or iter(()))
    list(dataset.batches(64, position=Position(0, 64 * 10, 10), prefetch=0))
    assert read == list(range(10, 16))


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("seed", [None, 5])
def test_the_order_is_the_same_for_any_number_of_workers(dataset, workers, seed):
    expected = list(dataset.batches(48, seed=seed, buffer_rows=200))
    found = list(dataset.batches(48, seed=seed, buffer_rows=200, workers=workers))
    for left, right in zip(found, expected, strict=True):
        assert_batches_equal(left, right)


def test_a_large_row_group_is_never_held_whole(tmp_path, monkeypatch):
    path = write(tmp_path / "rows.parquet", encoded_table(WIDE), group=WIDE)
    monkeypatch.setattr(parquet, "CODED_ROWS", 64)
    encoded = []
    learnt = Encoder.fit(path, treat_as="encoded")
    dataset = Dataset(path, learnt)
    encode = Reader.encode
    monkeypatch.setattr(Reader, "encode", lambda *given: encoded.append(1) or encode(*given))
    for limit, most in ((WIDE - 1, 3), (WIDE, WIDE)):
        monkeypatch.setattr(stream, "HELD_ROWS", limit)
        encoded.clear()
        next(dataset.batches(32, workers=3, prefetch=0))
        assert len(encoded) <= most


@pytest.mark.parametrize("limit, whole", [(0, False), (1 << 30, True)])
def test_the_bytes_of_a_large_row_group_are_not_held_whole(tmp_path, monkeypatch, limit, whole):
    rng = np.random.default_rng(0)
    columns = {f"C{i}": rng.integers(0, 2**62, 300_000) for i in range(4)}
    path = str(tmp_path / "rows.parquet")
    pq.write_table(pa.table(columns), path, data_page_size=1 << 14, use_dictionary=False)
    monkeypatch.setattr(parquet, "_LARGE", limit)
    (part,) = parquet.parquet_parts(path)
    before = pa.total_allocated_bytes()
    pieces = part.pieces(list(columns))
    next(pieces)
    held = pa.total_allocated_bytes() - before
    pieces.close()
    assert (held > os.path.getsize(path) / 2) == whole


def test_workers_pass_on_the_error_of_a_row(tmp_path):
    rows = make_rows()
    rows["label"][37] = 2
    path = write(tmp_path / "bad.parquet", table(rows))
    encoder = Encoder.fit(path, min_count=2)
    with pytest.raises(DataError, match="row group 2, row 37, column label"):
        list(Dataset(path, encoder).batches(8, workers=3))


def test_batches_of_the_user_are_resumed_by_their_number():
    batches = [Batch([[float(i)]], [[i]]) for i in range(5)]
    assert list(Dataset(batches, None).batches(1, position=Position(0, 0, 3))) == batches[3:]


@pytest.mark.parametrize(
    "values", [{}, {"epoch": 0, "row": -1, "batch": 0}, {"epoch": 0, "row": 1.0, "batch": 0}, 3]
)
def test_a_damaged_position_is_refused(values):
    with pytest.raises(CheckpointError, match="a saved position is damaged"):
        Position.from_dict(values)


def test_an_id_beyond_its_table_is_found_before_any_row_is_given(tmp_path):
    encoder = Encoder.fit(encoded_table(), sizes=[5] * 4)
    path = write(tmp_path / "rows.parquet", encoded_table())
    with pytest.raises(DataError, match=r"row group 0, row \d+, column C1: id \d is outside its"):
        Dataset(path, encoder)
