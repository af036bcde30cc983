# SPDX-License-Identifier: Apache-2.0
"""Numbers as buckets: categories made of dense columns, with a row for what is missing."""

import numpy as np
import pandas as pd
import pytest

import sparsetrain as st
from sparsetrain.data import ColumnRule, Derived, Encoder, Schema, with_buckets
from sparsetrain.data.schema.column_rule import Linear
from sparsetrain.errors import ConfigError

PLAIN = Schema(dense=("price",), categories=("site",))


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    price = np.where(rng.random(2000) < 0.1, np.nan, rng.lognormal(2, 2, 2000).round())
    return pd.DataFrame(
        {"label": rng.integers(0, 2, 2000), "price": price, "site": rng.integers(0, 5, 2000)}
    )


def test_quantiles_hold_as_many_rows_each_and_missing_is_a_value(frame):
    encoder = Encoder.fit(frame, schema=with_buckets(PLAIN, "quantiles"), nan="missing")
    assert encoder.columns == ("site", "price bucket") and encoder.num_dense == 1
    ids = encoder.encode(frame).ids[:, 1]
    missing = frame["price"].isna().to_numpy()
    assert {*ids[missing]} == {0} and 0 not in ids[~missing]
    counts = np.bincount(ids[~missing])[2:]
    assert 20 < len(counts) <= 32  # small whole numbers tie
    assert np.median(counts) == pytest.approx((~missing).sum() / 32, rel=0.1)
    order = frame["price"].to_numpy()[~missing]
    buckets = np.array([encoder.values("price bucket")[i] for i in ids[~missing]], int)
    assert (np.diff(buckets[np.argsort(order)]) >= 0).all()


def test_logarithms_are_powers_of_two(frame):
    schema = with_buckets(PLAIN, "logarithms", keep=False)
    encoder = Encoder.fit(frame, schema=schema, nan="missing")
    assert encoder.num_dense == 0
    ids = encoder.encode(frame).ids[:, 1]
    known = frame["price"].notna().to_numpy()
    values = [encoder.values("price bucket")[i] for i in ids[known]]
    wanted = np.floor(np.log2(1 + frame["price"][known]))
    assert [*map(float, values)] == wanted.tolist()


def test_buckets_alone_need_no_scale():
    schema = Schema(dense=("price",), categories=("site",), linear={"price": Linear(1.0, 2.0)})
    assert with_buckets(schema, "quantiles").linear == schema.linear
    assert with_buckets(schema, "quantiles", keep=False).linear == {}


def test_columns_of_criteos_names_are_given():
    made = with_buckets(Schema(), "quantiles", ["I1", "I2"], ["C1"])
    assert (made.dense, made.categories) == (("I1", "I2"), ("C1", "I1 bucket", "I2 bucket"))
    assert made.rule("I1 bucket") == ColumnRule(min_count=1)
    assert with_buckets(PLAIN, "scaled") is PLAIN


def test_what_cannot_be_is_refused():
    taken = Schema(
        dense=("a",), categories=("a bucket",), derived={"a bucket": Derived("a", log=2)}
    )
    with pytest.raises(ConfigError, match="there is a column 'a bucket' already: rename it"):
        with_buckets(taken, "quantiles")
    with pytest.raises(ConfigError, match="numbers is 'buckets'; it must be 'best', 'scaled', 'q"):
        with_buckets(PLAIN, "buckets")


def test_the_command_makes_and_keeps_them(frame, tmp_path, capsys):
    from sparsetrain.cli import main

    file, run = tmp_path / "rows.parquet", tmp_path / "run"
    frame.rename(columns={"price": "I1", "site": "C1"}).to_parquet(file)
    command = ["train", file, "--numbers", "quantiles", "--model", "lr", "--out", run]
    assert main([*map(str, command), "--set", "data.nan=missing"]) == 0
    assert st.load(run).encoder.columns == ("C1", "I1 bucket")
    assert main(["train", "--resume", str(run), "--epochs", "2"]) == 0
    out = tmp_path / "converted"
    assert main(["convert", str(file), "--out", str(out), "--numbers", "quantiles"]) == 0
    assert Encoder.fit(out).columns == ("C1", "I1 bucket")
    capsys.readouterr()
    assert main([*map(str, ["train", out, "--numbers", "logarithms", "--model", "lr"])]) == 2
    assert "these data are converted: convert the raw data again" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("names", [("price", "site"), ("I1", "C1")])
def test_converted_rows_have_the_boundaries_of_the_raw_ones(frame, names, suffix, tmp_path):
    raw, out = tmp_path / f"rows{suffix}", tmp_path / "converted"
    rows = frame.rename(columns=dict(zip(("price", "site"), names, strict=True)))
    rows.to_parquet(raw) if suffix == ".parquet" else rows.to_csv(raw, index=False)
    plain = PLAIN if names == ("price", "site") else Schema()
    schema = with_buckets(plain, "binned", ["I1"], ["C1"])
    options = {"schema": schema, "nan": "missing", "missing_flags": True, "treat_as": "raw"}
    learnt = Encoder.fit(raw, **options)
    st.data.convert_files(raw, out, workers=2, **options)
    known = Encoder.fit(out)
    assert known.fingerprint == learnt.fingerprint
    assert known.model_arguments == learnt.model_arguments
    assert known.model_arguments["numbers"] == "binned"
    assert known.schema.categories == plain.categories


def test_buckets_that_a_model_has_to_learn_are_refused_by_convert(frame, tmp_path, capsys):
    from sparsetrain.cli import main

    frame.to_parquet(tmp_path / "rows.parquet")
    command = ["convert", tmp_path / "rows.parquet", "--out", tmp_path / "x"]
    assert main([*map(str, command), "--numbers", "autodis"]) == 2
    assert "--numbers autodis works with `train` only" in capsys.readouterr().err
