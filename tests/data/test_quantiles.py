# SPDX-License-Identifier: Apache-2.0
"""Quantiles: boundaries learnt from the training data, which are ordinary ones from then on."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from sparsetrain.data import Dataset, Derived, Encoder, Schema, convert_files
from sparsetrain.data.derived.boundaries import boundaries_of
from sparsetrain.data.encode import learn
from sparsetrain.errors import ConfigError, DataError


@pytest.mark.parametrize("count", [2, 3, 16, 100])
def test_buckets_of_numbers_that_differ_hold_as_many_each(count):
    values = np.random.default_rng(0).permutation(np.arange(10_000) * 0.37)
    cuts = boundaries_of(values, count)
    assert len(cuts) == count - 1
    held = np.bincount(np.searchsorted(cuts, values, side="right"))
    assert held.min() >= 10_000 // count and held.max() <= -(-10_000 // count)


TIED = {
    "in the middle": ([1, 2, 5, 5, 5, 5, 5, 8, 9, 10, 11], 4, (5, 9)),
    "at the least": ([0] * 90 + [*range(1, 11)], 4, (1,)),
    "all of them": ([7, 7, 7], 4, (7,)),
    "few numbers": ([1, 2], 16, (2,)),
    "of both signs": ([-0.0, 0.0, -3.5, 4], 2, (0,)),
}


@pytest.mark.parametrize("case", TIED)
def test_equal_quantiles_are_one_boundary(case):
    values, count, cuts = TIED[case]
    assert boundaries_of(np.array(values, float), count) == cuts


@pytest.mark.parametrize("period", [1, 2, 7, 64, 1000])
def test_a_sample_is_even_whatever_period_the_rows_have(period, monkeypatch):
    monkeypatch.setattr(learn, "MOST", 1000)
    whole, parts = learn._Sample(), learn._Sample()
    values = np.arange(50_000, dtype=float)
    whole.add(values)
    for part in np.array_split(values, 13):
        parts.add(part)
    taken = parts.values()
    np.testing.assert_array_equal(taken, whole.values())
    assert 500 <= len(taken) <= 1000
    assert np.abs(np.histogram(taken, 20, (0, 50_000))[0] / len(taken) - 0.05).max() < 0.005
    phases = np.histogram(taken % period, min(period, 10))[0] / len(taken)
    assert np.abs(phases - 1 / len(phases)).max() < 0.03


def rows(count=3000):
    random = np.random.default_rng(1)
    price = np.round(random.lognormal(2, 1, count), 2)
    return pa.table(
        {
            "click": random.integers(0, 2, count),
            "site": random.choice(["a", "b", "c"], count),
            "price": pa.array(price, mask=random.random(count) < 0.1),
        }
    )


def schema(count=8):
    return Schema(
        label="click",
        categories=("site", "bucket"),
        derived={"bucket": Derived("price", quantiles=count)},
    )


def test_an_encoder_keeps_boundaries_in_place_of_quantiles():
    encoder = Encoder.fit(rows(), schema=schema())
    price = rows()["price"].drop_null().to_numpy()
    cuts = np.quantile(price, np.arange(1, 8) / 8, method="higher")
    assert encoder.schema.derived["bucket"] == Derived("price", boundaries=tuple(cuts.tolist()))
    again = Encoder.from_state(*encoder.to_state())
    assert again.fingerprint == encoder.fingerprint
    buckets = np.searchsorted(cuts, rows()["price"].to_numpy(), side="right")
    held = [encoder.values("bucket")[id_] for id_ in again.encode(rows()).ids[:, 1]]
    there = rows()["price"].is_valid().to_numpy()
    assert np.array(held)[there].tolist() == buckets[there].tolist()


def test_an_extended_encoder_keeps_its_boundaries():
    encoder = Encoder.fit(rows(), schema=schema())
    newer = rows().set_column(2, "price", pa.array(np.linspace(500, 900, 3000)))
    assert encoder.extended(newer).schema == encoder.schema


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_conversion_learns_the_boundaries_of_fit(suffix, workers, tmp_path, monkeypatch):
    monkeypatch.setattr(learn, "MOST", 200)
    files = []
    for number in range(3):
        files.append(str(tmp_path / f"{number}.{suffix}"))
        table = rows().slice(1000 * number, 1000)
        if suffix == "csv":
            pa.csv.write_csv(table, files[-1])
        else:
            pa.parquet.write_table(table, files[-1], row_group_size=300)
    encoder = Encoder.fit(files, schema=schema())
    convert_files(files, tmp_path / "out", schema=schema(), workers=workers)
    assert Encoder.fit(tmp_path / "out").fingerprint == encoder.fingerprint
    (batch,) = Dataset(tmp_path / "out", encoder).batches(3000)
    np.testing.assert_array_equal(batch.ids, encoder.encode(rows()).ids)
    # A second time, all is done.
    convert_files(files, tmp_path / "out", schema=schema(), workers=workers)


@pytest.mark.parametrize("inputs", [{}, {"dense": ("cost",), "vectors": {"point": 2}}])
def test_a_conversion_leaves_bad_rows_out_of_quantiles(inputs, tmp_path):
    texts = rows()["price"].cast(pa.string()).to_pylist()
    texts[5] = "dear"
    table = rows().set_column(2, "price", pa.array(texts))
    table = table.append_column("cost", pa.array(np.arange(3000.0)))
    table = table.append_column("point", pa.array([[1.0, 2.0]] * 3000))
    described = replace(schema(), **inputs)
    pa.parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="row 5, column price: 'dear' is not a number"):
        convert_files(tmp_path / "rows.parquet", tmp_path / "out", schema=described)
    options = {"schema": described, "bad_rows": "skip"}
    found = convert_files(tmp_path / "rows.parquet", tmp_path / "out", **options)
    assert (found["rows"], found["bad_rows_by_column"]) == (2999, {"bucket": 1})
    good = table.filter(np.arange(3000) != 5)
    encoder = Encoder.fit(good, schema=described)
    assert Encoder.fit(tmp_path / "out").schema == encoder.schema


def test_a_column_without_a_number_is_refused():
    table = rows().set_column(2, "price", pa.nulls(3000, pa.float64()))
    with pytest.raises(
        DataError, match="table: column price: no number from which to learn quantiles of bucket"
    ):
        Encoder.fit(table, schema=schema())


def test_rows_that_can_be_read_once_are_refused():
    with pytest.raises(DataError, match="only once; give a table or files, or boundaries"):
        Encoder.fit(rows().to_reader(), schema=schema())


def test_quantiles_of_text_that_is_no_list_of_numbers_are_refused():
    table = rows().set_column(2, "price", pa.array([[1.0]] * 3000))
    with pytest.raises(DataError, match="column price: type list.* cannot be used for 'quantiles'"):
        Encoder.fit(table, schema=schema())


@pytest.mark.parametrize("count", [1, 0, 10_001, 2.5, True])
def test_a_number_of_buckets_that_cannot_be_is_refused(count):
    with pytest.raises(ConfigError, match=r"derived\.bucket\.quantiles"):
        schema(count)


def test_quantiles_are_read_from_a_file(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text(schema(16).to_toml())
    assert "quantiles = 16" in path.read_text()
    assert Schema.read(path) == schema(16)


UNREAD = {  # a derived column that nothing reads -> what is wrong with its source
    "missing": (Derived("nowhere", quantiles=4), "nowhere"),
    "text": (Derived("site", quantiles=4), "site"),
}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("case", UNREAD)
def test_boundaries_that_nothing_reads_of_no_number_are_refused_by_name(case, named, tmp_path):
    rule, wrong = UNREAD[case]
    rows = pd.DataFrame({"label": [0, 1] * 30, "price": range(60), "site": ["x", "y"] * 30})
    schema = Schema(dense=("price",), categories=("site",), derived={"cut": rule})
    if not named:
        rows = rows.rename(columns={"price": "I1", "site": "C1"})
        rule = replace(rule, source="C1" if case == "text" else wrong)
        wrong, schema = rule.source, Schema(derived={"cut": rule})
    rows.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=wrong):
        Encoder.fit(rows, schema=schema)
    with pytest.raises(DataError, match=wrong):
        convert_files(tmp_path / "rows.parquet", tmp_path / "out", schema=schema)
