# SPDX-License-Identifier: Apache-2.0
"""The column with the weights of rows: where it must be, where it may be missing, its bad rows."""

import numpy as np
import pandas as pd
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


@pytest.mark.parametrize("what", MIXED)
def test_rows_with_bad_weights_of_several_kinds_are_left_out(what, stored, tmp_path):
    bad = [5, 7, 9]
    data = rows(w=dict(zip(bad, MIXED[what], strict=True)))
    if what.startswith("text"):
        data["w"] = [str(value) for value in data["w"]]
    options = {"min_count": 1, "weights": "w", "bad_rows": "quarantine"}
    summary = convert_files(stored("raw", data), tmp_path / "out", **options)
    assert summary["bad_rows_by_column"] == {"w": 3}
    (batch,) = Dataset(str(tmp_path / "out"), Encoder.fit(str(tmp_path / "out"))).batches(300)
    assert batch.weights.tolist() == np.delete(rows()["w"], bad).tolist()


def test_the_first_bad_weight_is_named_whatever_is_wrong_with_it():
    known = Encoder.fit(rows(), min_count=1, weights="w")
    for value, said in {-1.0: "the weight is -1", np.nan: "the weight is null or NaN"}.items():
        with pytest.raises(DataError, match=f"row 5.*{said}"):
            known.encode(rows(w={5: value, 7: -2.0, 9: np.nan}))


def test_rows_whose_labels_are_bad_in_several_ways_are_left_out(stored, tmp_path):
    path = stored("raw", rows(label={5: 2.0, 7: np.inf, 9: None}))
    summary = convert_files(path, tmp_path / "out", min_count=1, bad_rows="skip")
    assert summary["bad_rows_by_column"] == {"label": 3}


def test_data_converted_without_weights_or_with_others_are_not_weighed_by_these(stored, tmp_path):
    raw = stored("raw", rows())
    convert_files(raw, tmp_path / "plain", min_count=1)
    convert_files(raw, tmp_path / "weighed", min_count=1, weights="w")
    with pytest.raises(ConfigError, match="converted without weights; .* with weights='w'"):
        Encoder.fit(str(tmp_path / "plain"), weights="w")
    with pytest.raises(ConfigError, match="weights is 'I1', but .* converted with 'w'; leave it"):
        Encoder.fit(str(tmp_path / "weighed"), weights="I1")
    assert Encoder.fit(str(tmp_path / "weighed"), weights="w").schema.weights == "w"


def test_an_encoder_without_weights_converts_none(stored, tmp_path):
    raw = stored("raw", rows())
    known = Encoder.fit(raw, min_count=1)
    with pytest.raises(ConfigError, match="fitted without weights; .* again with weights='w'"):
        convert_files(raw, tmp_path / "out", encoder=known, weights="w")
    assert not (tmp_path / "out").exists()
    weighed = Encoder.fit(raw, min_count=1, weights="w")
    assert convert_files(raw, tmp_path / "out", encoder=weighed, weights="w")["rows"] == 300


def test_converted_training_data_without_their_weights_are_refused(stored, tmp_path):
    known = Encoder.fit(rows(), min_count=1, weights="w")
    path = stored("raw", small_dlrm.raw_rows(60))
    convert_files(path, tmp_path / "out", encoder=known)
    with pytest.raises(DataError, match="column w: the weight column is missing"):
        Encoder.fit(str(tmp_path / "out"), weights="w")


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_files_of_which_one_lacks_the_column_are_not_converted(order, stored, tmp_path):
    paths = {"a": stored("a", rows()), "b": stored("b", small_dlrm.raw_rows(60))}
    files = [paths[name] for name in order]
    with pytest.raises(DataError, match=r"b\.parquet.*column w.*is missing"):
        convert_files(files, tmp_path / "out", min_count=1, weights="w")
    assert not (tmp_path / "out").exists()


def test_a_column_called_as_converted_labels_are_is_refused():
    for label in (None, "clicked"):
        with pytest.raises(ConfigError, match=r"weights: 'label' is (a label|the label's name)"):
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


@pytest.mark.parametrize("kind", [dict, pd.DataFrame])
def test_a_misspelt_column_of_a_frame_is_told_the_nearest(kind):
    data = rows()
    data["importance"] = data.pop("w")
    with pytest.raises(DataError, match="column importanse: .* the nearest name there is importa"):
        Encoder.fit(kind(data), weights="importanse")
