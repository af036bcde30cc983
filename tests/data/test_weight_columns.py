# SPDX-License-Identifier: Apache-2.0
"""The column with the weights of rows: where it must be, where it may be missing, its bad rows."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder, Schema, convert_files
from sparsetrain.errors import ConfigError, DataError
from tests import small_dlrm


def rows(count: int = 300, **columns) -> dict[str, list]:
    """Raw rows with weights in `w`; a column given as {row: value} is changed in those rows."""
    raw = {**small_dlrm.raw_rows(count), "w": [0.5 + number % 7 for number in range(count)]}
    for name, changes in columns.items():
        raw[name] = [changes.get(row, value) for row, value in enumerate(raw[name])]
    return raw


@pytest.fixture
def stored(tmp_path):
    def store(name: str, columns: dict) -> str:
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table(columns), path)
        return str(path)

    return store


# What stands in the column at rows 5, 7 and 9.
MIXED = {
    "negative, then null and NaN": [-1.0, None, np.nan],
    "null, then negative and NaN": [None, -1.0, np.nan],
    "NaN, then null and infinite": [np.nan, None, np.inf],
    "negative, then infinite": [-1.0, -1.0, np.inf],
    "text: negative, then no number": ["-1", "1e39", "x"],
    "text: infinite, then nothing": ["inf", "", "x"],
}


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_files_of_which_one_lacks_the_column_are_not_converted(order, stored, tmp_path):
    paths = {"a": stored("a", rows()), "b": stored("b", small_dlrm.raw_rows(60))}
    files = [paths[name] for name in order]
    with pytest.raises(DataError, match=r"b\.parquet.*column w.*is missing"):
        convert_files(files, tmp_path / "out", min_count=1, weights="w")
    assert not (tmp_path / "out").exists()


def test_a_column_called_as_converted_labels_are_is_refused():
    for label in (None, "clicked"):
        with pytest.raises(ConfigError, match="weights: 'label' is a label"):
            Schema(label=label, dense=("I1",), categories=("C1",), weights="label")


def test_weights_are_not_read_where_nothing_is_trained(stored, tmp_path):
    known = Encoder.fit(rows(), min_count=1, weights="w")
    bad, lacking = stored("bad", rows(w={5: None, 7: -1.0})), small_dlrm.raw_rows(60)
    for data in (bad, [bad, stored("lacking", lacking)], {**lacking, "w": [[1.0]] * 60}):
        dataset = Dataset(data, known, read_weights=False)
        assert all(batch.weights is None for batch in dataset.batches(300))
        assert "weights" not in dataset.layout
        with pytest.raises(DataError, match="column w"):
            list(Dataset(data, known).batches(300))
