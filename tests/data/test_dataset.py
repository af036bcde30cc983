# SPDX-License-Identifier: Apache-2.0
import pickle
from copy import deepcopy

import numpy as np
import pyarrow as pa
import pytest

from sparsetrain.data import Batch, Dataset, Encoder, open_source, split_share
from tests.data.criteo_tables import (
    ROWS,
    assert_batches_equal,
    encoded_table,
    joined,
    make_rows,
    table,
    write,
)

RAW = make_rows()
ENCODER = Encoder.fit(table(RAW), min_count=2)
WIDE = 1000


@pytest.fixture
def numbered(tmp_path):
    """1000 encoded rows in row groups of 64, whose first dense value is their number."""
    found = encoded_table(WIDE)
    number = pa.array(np.arange(WIDE, dtype=np.float32))
    path = write(tmp_path / "rows.parquet", found.set_column(1, "I1", number), group=64)
    return Dataset(path, Encoder.fit(path, treat_as="encoded"))


def order(batches):
    return np.concatenate([batch.dense[:, 0] for batch in batches]).astype(int)


def test_without_a_seed_rows_come_in_the_order_of_the_file(numbered):
    batches = list(numbered.batches(48))
    assert [len(batch) for batch in batches] == [48] * 20 + [40]
    np.testing.assert_array_equal(order(batches), np.arange(WIDE))


def test_the_last_batch_can_be_dropped(numbered):
    assert [len(batch) for batch in numbered.batches(300, drop_last=True)] == [300] * 3
    assert [len(batch) for batch in numbered.batches(250, drop_last=True)] == [250] * 4
    assert [len(batch) for batch in numbered.batches(2000)] == [WIDE]


@pytest.mark.parametrize("buffer_rows", [1, 100, 300, WIDE, 10**6])
def test_a_shuffle_yields_every_row_once_with_all_its_columns(numbered, buffer_rows):
    batches = list(numbered.batches(48, seed=1, buffer_rows=buffer_rows))
    assert [len(batch) for batch in batches] == [48] * 20 + [40]
    rows = order(batches)
    assert sorted(rows) == list(range(WIDE))
    plain, mixed = joined(numbered.batches(WIDE)), joined(batches)
    np.testing.assert_array_equal(mixed.ids, plain.ids[rows])
    np.testing.assert_array_equal(mixed.labels, plain.labels[rows])


def test_a_shuffle_depends_on_seed_and_epoch_alone(numbered):
    def rows(seed, epoch, **options):
        return order(numbered.batches(48, seed=seed, epoch=epoch, **options)).tolist()

    assert rows(1, 0) == rows(1, 0, prefetch=0)
    assert len({tuple(rows(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


def test_a_small_buffer_still_mixes_far_apart_rows(numbered):
    trends = []
    for seed in range(10):
        rows = order(numbered.batches(50, seed=seed, buffer_rows=256))
        trends.append(np.corrcoef(rows, np.arange(WIDE))[0, 1])
        assert np.median([np.ptp(rows[i : i + 50]) for i in range(0, WIDE, 50)]) > WIDE / 2
    assert np.abs(np.mean(trends)) < 0.2


def test_batches_do_not_change_when_later_ones_are_made(numbered):
    batches, copies = [], []
    for batch in numbered.batches(48, seed=2, buffer_rows=100):
        batches.append(batch)
        copies.append((batch.dense.copy(), batch.ids.copy(), batch.labels.copy()))
    for batch, copy in zip(batches, copies, strict=True):
        for name, array in zip(("dense", "ids", "labels"), copy, strict=True):
            found = getattr(batch, name)
            np.testing.assert_array_equal(found, array)
            assert found.flags.c_contiguous and not found.flags.writeable


def test_several_files_of_several_layouts_are_one_dataset(tmp_path):
    names = ["I1", "I2", "I3", "C1", "C2", "C3", "C4"]
    renamed = dict(
        zip(names, ["int_0", "int_1", "int_2", *(f"cat_{i}" for i in range(4))], strict=True)
    )
    other = table(RAW).rename_columns([renamed.get(n, n) for n in table(RAW).column_names])
    paths = [
        write(tmp_path / "a.parquet", table(RAW)),
        write(tmp_path / "b.parquet", other.select(other.column_names[::-1])),
    ]
    expected = ENCODER.encode(table(RAW))
    dataset = Dataset(paths, ENCODER)
    assert [line[:13] for line in dataset.layout.split("; ")] == ["raw, Criteo n", "raw, torchrec"]
    found = joined(dataset.batches(7))
    for half in (slice(0, ROWS), slice(ROWS, None)):
        rows = Batch(found.dense[half], found.ids[half], found.labels[half])
        assert_batches_equal(rows, expected)


def test_paths_may_be_a_folder_a_pattern_or_a_list(tmp_path):
    (tmp_path / "day=1").mkdir()
    files = [write(tmp_path / "b.parquet", table(RAW)), write(tmp_path / "a.parquet", table(RAW))]
    deep = write(tmp_path / "day=1" / "c.parquet", table(RAW))
    write(tmp_path / "_hidden.parquet", table(RAW))
    (tmp_path / "_SUCCESS").touch()

    def names(data):
        return list(dict.fromkeys(part.location.name for part in open_source(data).parts))

    assert names(tmp_path) == [files[1], files[0], deep]
    assert names(str(tmp_path / "[ab].parquet")) == [files[1], files[0]]
    assert names(str(tmp_path / "**" / "c.parquet")) == [deep]
    assert names(files) == files
    assert names((files[0], tmp_path / "day=1")) == [files[0], deep]


def test_a_name_with_brackets_is_a_name_if_it_is_there(tmp_path):
    path = write(tmp_path / "rows[1].parquet", table(RAW))
    assert open_source(path).name == path


def test_rows_and_layout_are_known_before_reading(tmp_path):
    path = write(tmp_path / "rows.parquet", table(RAW))
    assert Dataset([path, path], ENCODER).num_rows == 2 * ROWS
    assert Dataset(path, ENCODER).layout == ENCODER.layout + ", label in label"
    assert Dataset(path, ENCODER, require_label=False).layout == ENCODER.layout
    assert Dataset(table(RAW).to_reader(), ENCODER).num_rows is None
    assert Dataset([ENCODER.encode(table(RAW))], None).layout == "batches, used as they are"


def test_row_groups_of_one_row_and_of_none_are_read(tmp_path):
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    with pq.ParquetWriter(path, table(RAW).schema) as writer:
        for first, count in ((0, 1), (1, 0), (1, 58), (59, 1)):
            writer.write_table(table(RAW).slice(first, count))
    assert pq.ParquetFile(path).num_row_groups >= 3
    assert_batches_equal(joined(Dataset(path, ENCODER).batches(9)), ENCODER.encode(table(RAW)))
    assert len(joined(Dataset(path, ENCODER).batches(9, seed=0))) == ROWS


@pytest.mark.parametrize("seed", [None, 0])
def test_rows_for_prediction_have_no_label(tmp_path, seed):
    path = write(tmp_path / "rows.parquet", table(RAW).drop_columns(["label"]))
    batches = list(Dataset(path, ENCODER, require_label=False).batches(16, seed=seed))
    assert [len(batch) for batch in batches] == [16, 16, 16, 12]
    assert all(batch.labels is None for batch in batches)


def test_a_table_a_stream_and_a_file_give_the_same_batches(tmp_path):
    path = write(tmp_path / "rows.parquet", table(RAW))
    expected = list(Dataset(path, ENCODER).batches(25))
    for data in (table(RAW), table(RAW).to_reader(max_chunksize=11), table(RAW).to_pandas()):
        for found, batch in zip(Dataset(data, ENCODER).batches(25), expected, strict=True):
            assert_batches_equal(found, batch)


def test_a_long_table_is_cut_into_parts_whose_rows_keep_their_numbers():
    long = pa.table({"I1": pa.array(np.arange(150_000)), "C1": pa.array(np.zeros(150_000, int))})
    encoder = Encoder.fit(long)
    source = open_source(long)
    assert [part.location.first_row for part in source.parts] == [0, 65_536, 131_072]
    found = np.concatenate(
        [b.dense[:, 0] for b in Dataset(source, encoder, require_label=False).batches(9_999)]
    )
    np.testing.assert_allclose(found, np.log(np.arange(150_000) + 3.0), rtol=1e-6)
    mixed = Dataset(source, encoder, require_label=False).batches(9_999, seed=0, buffer_rows=40_000)
    assert sorted(np.concatenate([b.dense[:, 0] for b in mixed])) == found.tolist()


def test_batches_of_the_user_pass_through_in_the_users_thread():
    import threading

    batches = [ENCODER.encode(table(RAW)), Batch([[0.0]], [[1]])]
    threads = []

    class Loader:
        def __iter__(self):
            for batch in batches:
                threads.append(threading.current_thread())
                yield batch

    dataset = Dataset(Loader(), None)
    for epoch in range(2):
        assert list(dataset.batches(1, seed=0, epoch=epoch)) == batches
    assert set(threads) == {threading.main_thread()}
    assert list(Dataset(batches[0], None).batches(1)) == batches[:1]


@pytest.mark.parametrize("copied", ["pickled", "copied"])
@pytest.mark.parametrize("opened", [str, open_source, lambda path: split_share(path, 0.5)[0]])
def test_a_dataset_of_a_file_may_go_to_another_process(opened, copied, tmp_path):
    path = str(write(tmp_path / "rows.parquet", table(RAW), group=64))
    dataset = Dataset(opened(path), ENCODER)
    # What is pickled here was made here.
    other = deepcopy(dataset) if copied == "copied" else pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert_batches_equal(joined(other.batches(48, seed=1)), joined(dataset.batches(48, seed=1)))
