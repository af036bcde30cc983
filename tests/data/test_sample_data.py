# SPDX-License-Identifier: Apache-2.0
"""The real Criteo sample, where it is: set SPARSETRAIN_SAMPLE_DATA to its folder."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from sparsetrain.data import Dataset, Encoder, convert_files
from sparsetrain.errors import DataError
from tests.data.criteo_tables import assert_batches_equal, joined

FOLDER = Path(os.environ.get("SPARSETRAIN_SAMPLE_DATA", "nowhere"))
pytestmark = pytest.mark.skipif(
    not (FOLDER / "criteo_kaggle_train.parquet").is_file(),
    reason="SPARSETRAIN_SAMPLE_DATA does not name a folder with the sample",
)


@pytest.fixture(scope="module")
def encoder():
    return Encoder.fit(FOLDER / "criteo_kaggle_train.parquet")


@pytest.fixture(scope="module")
def head(encoder):
    return next(Dataset(FOLDER / "criteo_kaggle_train.parquet", encoder).batches(1000))


def read(name, encoder, **options):
    return joined(Dataset(FOLDER / name, encoder, **options).batches(512))


@pytest.mark.parametrize("name", ["torchrec_names_int64hex", "reczoo_x4_all_text"])
def test_raw_variants_of_the_same_rows_are_encoded_alike(name, encoder, head):
    assert_batches_equal(read(f"variants/{name}.parquet", encoder), head)


@pytest.mark.parametrize("name", ["encoded_f32_i32.parquet", "hugectr"])
def test_encoded_variants_keep_their_ids_and_have_our_logarithms(name, head):
    path = FOLDER / "variants" / name
    encoder = Encoder.fit(path)
    sizes = json.loads((FOLDER / "variants" / "encoded_f32_i32.sizes.json").read_text())
    assert encoder.encoded and encoder.rows == list(sizes.values())
    found = joined(Dataset(path, encoder).batches(512))
    np.testing.assert_array_equal(found.labels, head.labels)
    np.testing.assert_allclose(found.dense, head.dense, rtol=1e-6)


def test_held_out_days_are_read_whole_and_their_ids_fit(encoder):
    for name, rows in (("test", 2470), ("val", 2458)):
        batch = read(f"criteo_kaggle_{name}.parquet", encoder)
        batch.check_rows(encoder.rows, encoder.columns)
        assert len(batch) == rows


def test_rows_without_a_label_can_be_predicted_but_not_trained_on(encoder):
    name = "criteo_kaggle_unlabelled.parquet"
    assert len(read(name, encoder, require_label=False)) == 1000
    with pytest.raises(DataError, match="column label: the label column is missing"):
        read(name, encoder)


def test_another_hash_of_the_same_format_is_read_and_mostly_unseen(encoder):
    batch = read("criteo_1tb_day0_head.parquet", encoder)
    assert (batch.ids == 1).mean() > 0.9


def test_the_raw_text_form_is_read_as_parquet_is(encoder, head):
    assert_batches_equal(read("variants/raw_kaggle.tsv", encoder), head)


@pytest.mark.parametrize(
    "name", ["raw_kaggle.tsv", "torchrec_names_int64hex.parquet", "reczoo_x4_all_text.parquet"]
)
def test_raw_variants_convert_to_the_same_ids(name, tmp_path):
    expected = Encoder.fit(FOLDER / "variants" / name, min_count=2)
    convert_files(FOLDER / "variants" / name, tmp_path / "out", min_count=2)
    found = Encoder.fit(tmp_path / "out")
    assert found.rows == expected.rows
    batches = joined(Dataset(tmp_path / "out", found).batches(512))
    assert_batches_equal(batches, read(f"variants/{name}", expected))
