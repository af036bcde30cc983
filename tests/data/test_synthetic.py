# SPDX-License-Identifier: Apache-2.0
"""Synthetic Criteo: looks like the real columns, repeats exactly, and its ceiling is true."""

import errno
import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data.synthetic import SyntheticCriteo, read_truth
from sparsetrain.data.synthetic.generator import scramble
from sparsetrain.data.synthetic.sample import (
    CATEGORIES,
    CHUNK,
    INTEGERS,
    Sampler,
    Stream,
    load_figures,
)
from sparsetrain.errors import ConfigError, DataError, ResourceError
from sparsetrain.system.file_locks import try_lock
from tests.helpers import slow_except

ROWS = 137_139  # the size of the sample that the figures were measured on


@pytest.fixture(scope="module")
def generator() -> SyntheticCriteo:
    return SyntheticCriteo(seed=0)


@pytest.fixture(scope="module")
def made(generator) -> tuple[pa.Table, np.ndarray]:
    return generator.chunk_with_truth(0, rows=ROWS)


def auc_of(scores: np.ndarray, labels: np.ndarray) -> float:
    order = np.argsort(scores, kind="stable")
    clicks = labels[order].astype(float)
    return ((1 - clicks).cumsum() * clicks).sum() / (clicks.sum() * (1 - clicks).sum())


def test_columns_are_criteos_and_have_its_types(generator):
    table = generator.chunk(0, rows=10)
    assert table.column_names == ["label", *INTEGERS, *CATEGORIES]
    assert {table.schema.field(c).type for c in ("label", *INTEGERS)} == {pa.int32()}
    assert {table.schema.field(c).type for c in CATEGORIES} == {pa.string()}
    table.validate(full=True)


def test_a_category_is_eight_lower_case_hex_digits_or_null(generator):
    for name in CATEGORIES:
        values = generator.chunk(1, rows=500)[name].drop_null().to_pylist()
        assert all(re.fullmatch("[0-9a-f]{8}", value) for value in values)


def test_a_chunk_depends_on_seed_number_and_size_alone(generator):
    later = SyntheticCriteo(seed=0)
    later.chunk(7, rows=100)
    assert later.chunk(3, rows=500).equals(generator.chunk(3, rows=500))
    others = [generator.chunk(4, 500), SyntheticCriteo(seed=1).chunk(3, 500)]
    assert not any(other.equals(generator.chunk(3, rows=500)) for other in others)


def test_the_first_rows_of_seed_zero_never_change(generator):
    row = generator.chunk(0, rows=4).slice(2, 1).to_pylist()[0]
    expected = {"label": 0, "I1": None, "I5": 1693, "C1": "602d8c88", "C3": "d1659e29"}
    assert {name: row[name] for name in expected} == expected


GROUPS = load_figures()["missing_together"]


@pytest.mark.parametrize(("columns", "rate"), GROUPS, ids=["+".join(c) for c, _ in GROUPS])
def test_columns_of_a_group_go_missing_together_as_often_as_in_criteo(made, columns, rate):
    nulls = [made[0][name].is_null().to_numpy() for name in columns]
    assert all((other == nulls[0]).all() for other in nulls)
    assert nulls[0].mean() == pytest.approx(rate, abs=0.006)


def test_other_columns_have_no_null(made):
    grouped = {name for columns, _ in GROUPS for name in columns}
    assert all(made[0][c].null_count == 0 for c in made[0].column_names if c not in grouped)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_have_criteos_atoms_and_quantiles(made, name):
    figures, values = load_figures()["integers"][name], made[0][name].drop_null().to_numpy()
    assert (values < 0).mean() == pytest.approx(figures["negative"], abs=0.006)
    assert (values == 0).mean() == pytest.approx(figures["zero"], abs=0.006)
    positive = np.quantile(values[values > 0], load_figures()["quantile_levels"][4:10])
    np.testing.assert_allclose(positive, figures["positive"][4:10], rtol=0.1, atol=1.0)


def test_negative_values_go_down_to_minus_three(made):
    assert set(np.unique(made[0]["I2"].to_numpy()[made[0]["I2"].to_numpy() < 0])) == {-3, -2, -1}


@pytest.mark.parametrize(
    ("name", "distinct"),  # in a real sample of as many rows
    [("C3", 61763), ("C4", 32222), ("C7", 8634), ("C10", 13982), ("C12", 56396), ("C15", 5897)]
    + [("C16", 46381), ("C19", 1341), ("C21", 52249), ("C24", 14595), ("C26", 11138)],
)
def test_distinct_ids_are_as_many_as_in_criteo(made, name, distinct):
    assert len(made[0][name].drop_null().unique()) == pytest.approx(distinct, rel=0.02)


@pytest.mark.parametrize("count", slow_except([200_000], [200_000, 2_000_000]))
def test_ids_of_a_column_never_collide(count):
    ranks = np.arange(1, count, dtype=np.int32)
    assert len(np.unique(scramble(ranks, key=0x1234567))) == len(ranks)


@pytest.mark.parametrize("limit", [None, 2, 3, 1000])
def test_drawn_ranks_follow_the_law(limit):
    laws = dict(zip(CATEGORIES, Sampler(limit).categories, strict=True))
    for name in ("C3", "C5", "C7", "C9", "C17", "C20"):
        law = laws[name]
        ranks = law.draw(Stream(1, CHUNK).uniform(100_000))
        assert ranks.min() >= 1
        assert ranks.max() <= law.values
        expected = law.mass(50)
        counted = np.bincount(ranks, minlength=52)[1 : len(expected) + 1] / len(ranks)
        bound = 5 * np.sqrt(0.25 / len(ranks))
        np.testing.assert_allclose(counted, expected, atol=bound, err_msg=name)


def test_the_extreme_uniform_numbers_stay_inside_the_law():
    edges = np.array([0.0, np.nextafter(1.0, 0.0)])
    for law in Sampler().categories:
        np.testing.assert_array_equal(law.draw(edges), [1, law.values])


def test_max_cardinality_caps_every_column():
    table = SyntheticCriteo(seed=2, max_cardinality=40).chunk(0, rows=20_000)
    assert max(len(table[name].drop_null().unique()) for name in CATEGORIES) == 40


ASKED = [(0.256, 0.80), (0.03, 0.75), (0.5, 0.6), (0.256, 0.95)]


@pytest.mark.parametrize(("click_rate", "bayes_auc"), slow_except(ASKED[1:2], ASKED))
def test_click_rate_and_ceiling_are_what_was_asked_for(click_rate, bayes_auc):
    made = SyntheticCriteo(seed=5, click_rate=click_rate, bayes_auc=bayes_auc)
    _, p = made.chunk_with_truth(0)
    assert p.mean() == pytest.approx(click_rate, rel=0.03)
    labels = np.repeat([0, 1], len(p))
    order = np.argsort(np.tile(p, 2), kind="stable")
    weights = np.concatenate([1 - p, p])[order]
    clicks = weights * labels[order]
    ceiling = ((weights - clicks).cumsum() * clicks).sum() / (p.sum() * (1 - p).sum())
    assert ceiling == pytest.approx(bayes_auc, abs=0.006)


def test_labels_are_drawn_from_the_probabilities(made):
    labels, p = made[0]["label"].to_numpy(), made[1]
    for group in np.array_split(np.argsort(p), 20):
        deviation = np.sqrt((p[group] * (1 - p[group])).sum())
        assert abs(labels[group].sum() - p[group].sum()) < 4.5 * deviation


def test_planted_pairs_hold_what_no_additive_model_can_reach(generator):
    sample = generator._sampler.draw(Stream(0, CHUNK, 99), 65536)
    parts = generator._effects.parts(sample)
    logits = generator._calibration.logits(parts)
    labels = Stream(0, CHUNK, 98).uniform(65536) < 1 / (1 + np.exp(-logits))
    additive = logits - generator._calibration.weights[2] * parts[2]
    assert auc_of(logits, labels) - auc_of(additive, labels) > 0.03
    assert abs(np.corrcoef(parts)[2, :2]).max() < 0.05


def test_the_written_ceiling_is_that_of_the_rows_written(generator, tmp_path):
    truth = generator.write(tmp_path / "a.parquet", 2500, first_chunk=3, chunk_rows=1000)
    chunks = [generator.chunk_with_truth(k, 1000) for k in (3, 4, 5)]
    p = np.concatenate([p for _, p in chunks])[:2500]
    below = np.where(p[None] < p[:, None], 1 - p[None], 0.0).sum(axis=1) + 0.5 * (1 - p)
    assert truth.auc == pytest.approx((p * below).sum() / (p.sum() * (1 - p).sum()), abs=1e-7)
    entropy = -(p * np.log(p) + (1 - p) * np.log1p(-p)).mean()
    assert truth.logloss == pytest.approx(entropy, rel=1e-12)
    assert truth.click_rate == pytest.approx(p.mean(), rel=1e-12)
    assert truth.rows == 2500
    assert read_truth(tmp_path / "a.parquet") == truth
    written = pq.read_table(tmp_path / "a.parquet")
    assert written.equals(pa.concat_tables([table for table, _ in chunks])[:2500])


def test_fewer_rows_are_a_prefix_of_more(generator, tmp_path):
    generator.write(tmp_path / "few.parquet", 700, chunk_rows=500)
    generator.write(tmp_path / "more.parquet", 1500, chunk_rows=500)
    more = pq.read_table(tmp_path / "more.parquet")
    assert pq.read_table(tmp_path / "few.parquet").equals(more[:700])


def test_a_flipped_byte_is_found_by_the_page_checksums(generator, tmp_path):
    path = tmp_path / "a.parquet"
    generator.write(path, 2000)
    column = pq.read_metadata(path).row_group(0).column(20)
    damaged = bytearray(path.read_bytes())
    damaged[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(OSError, match="[Cc]hecksum|CRC"):
        pq.read_table(path, page_checksum_verification=True)


def test_the_file_of_another_writer_has_no_ceiling(generator, tmp_path):
    pq.write_table(generator.chunk(0, rows=5), tmp_path / "a.parquet")
    assert read_truth(tmp_path / "a.parquet") is None


def test_what_is_not_parquet_has_an_error_instead_of_a_ceiling(tmp_path):
    (tmp_path / "a.parquet").write_text("label,I1\n")
    for path in (tmp_path / "a.parquet", tmp_path / "missing.parquet", tmp_path):
        with pytest.raises(DataError, match=re.escape(f"{path} cannot be read as parquet: ")):
            read_truth(path)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, ResourceError), (errno.EIO, DataError)]
)
def test_a_failed_write_leaves_the_old_file_alone(generator, tmp_path, monkeypatch, number, kind):
    path = tmp_path / "a.parquet"
    path.write_text("old")

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind, match=re.escape(f"{path}: cannot be written: {os.strerror(number)}")):
        generator.write(path, 100)
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"]
    assert path.read_text() == "old"


def test_what_a_killed_writer_left_goes_and_what_another_writes_stays(generator, tmp_path):
    path, left = tmp_path / "a[1].parquet", tmp_path / ".a[1].parquet.99.tmp"
    other = tmp_path / ".a1.parquet.99.tmp"
    other.touch()
    left.touch()
    with try_lock(left):
        generator.write(path, 100)
        assert left.exists()
    generator.write(path, 100)
    assert {*tmp_path.iterdir()} == {path, other}


@pytest.mark.parametrize(("name", "fix"), [("", "it is a folder"), ("no/a.parquet", "create the")])
def test_a_place_where_no_file_can_be_is_refused(generator, tmp_path, name, fix):
    with pytest.raises(DataError, match=fix):
        generator.write(tmp_path / name, 100)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed is -1; it must be 0 or more"),
        ({"seed": 0.5}, "seed is 0.5; it must be a whole number"),
        ({"click_rate": 0.0}, "click_rate must be between 0.01 and 0.99, not 0.0"),
        ({"click_rate": float("nan")}, "click_rate must be between"),
        ({"bayes_auc": 1.0}, "bayes_auc must be between 0.55 and 0.99, not 1.0"),
        ({"max_cardinality": 1}, "max_cardinality is 1; it must be 2 or more"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        SyntheticCriteo(**arguments)


@pytest.mark.parametrize(
    ("k", "rows", "message"),
    [
        (-1, 5, "k is -1; it must be 0 or more"),
        (0, 0, "rows is 0; it must be 1 or more"),
        (0, 1 << 25, "rows is 33,554,432; it must be 16,777,216 or less"),
    ],
)
def test_a_chunk_that_cannot_be_is_refused(generator, k, rows, message):
    with pytest.raises(ConfigError, match=message):
        generator.chunk(k, rows)
