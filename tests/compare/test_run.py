# SPDX-License-Identifier: Apache-2.0
"""A comparison: what is measured, what is left out and why, where arms cross."""

from dataclasses import replace

import numpy as np
import pytest

from sparsetrain.cli.compare import crossing
from sparsetrain.compare import ARMS, Case, measure, measuring, sweep
from sparsetrain.errors import ConfigError, DataError

SMALL = Case(300, lookups=64, width=8)
CASES = [replace(SMALL, rows=rows) for rows in (300, 600)]


@pytest.fixture(scope="module")
def made():
    return [measure(arm, case) for case in CASES for arm in ARMS]


def test_every_arm_is_measured_on_ten_batches_or_says_why_not(made):
    assert {m.arm for m in made if not m.left_out} == {"stock", "dense", "sparse"}
    assert all(m.steps >= 10 for m in made if not m.left_out)
    assert {m.arm for m in made if m.left_out} == {"exact"}


def test_quantiles_are_in_order(made):
    for m in made:
        if not m.left_out:
            assert 0 < m.p10_us <= m.median_us <= m.p90_us
            assert 0 < m.unique <= m.case.lookups


def test_a_large_table_is_warmed_up_before_its_steps_count(monkeypatch):
    touched = []
    monkeypatch.setattr(measuring, "_LARGE_BYTES", CASES[1].table_bytes)
    monkeypatch.setattr(measuring, "_warm_up", lambda step, case: touched.append(case.rows))
    for case in CASES:
        measure("dense", case)
        measure("sparse", case)
    assert touched == [600]


def test_steps_that_take_long_are_few(monkeypatch):
    monkeypatch.setattr(measuring, "_MOST_SECONDS", 0.0)
    assert measure("dense", SMALL).steps == 1


def test_memory_by_formula_grows_with_rows_on_dense_arms_alone(made):
    of = {(m.arm, m.case.rows): m.memory_bytes for m in made}
    assert of["dense", 600] - of["dense", 300] == CASES[0].table_bytes
    assert of["stock", 600] == 2 * of["stock", 300]
    assert of["sparse", 600] == of["sparse", 300] == 32 * SMALL.lookups


def test_a_table_too_large_for_memory_is_left_out_and_said(monkeypatch):
    monkeypatch.setattr(measuring, "free_memory", lambda: 2**28 + SMALL.table_bytes)
    for arm in ("dense", "sparse"):
        assert "GB are free" in measure(arm, SMALL).left_out


def test_ids_outside_the_table_are_refused():
    with pytest.raises(DataError, match="301"):
        measure("sparse", SMALL, [np.full(64, 301)] * 13)


@pytest.mark.parametrize(
    ("dense", "found"),
    [
        ({100: 1.0, 300: 9.0, 900: 20.0}, 900),
        ({100: 20.0, 300: 20.0, 900: 99.0}, 100),
        ({100: 20.0, 300: 9.0, 900: 99.0}, 900),  # what is noise in between is no crossing
        ({100: 20.0, 300: 20.0, 900: 9.0}, None),
        ({100: 1.0, 300: 20.0}, 300),  # larger ones do not fit into the memory
    ],
)
def test_sparse_is_faster_from_the_size_behind_which_dense_never_is(dense, found):
    times = [(rows, "dense", time) for rows, time in dense.items()]
    assert crossing(times + [(rows, "sparse", 10.0) for rows in (100, 300, 900)]) == found


def test_a_sweep_changes_the_rows_alone():
    cases = [case for case, _ in sweep(Case(1, lookups=128), ["sgd", "adam"])]
    assert len({case.rows for case in cases}) == len(cases) / 2
    assert {replace(case, rows=1, formula="sgd") for case in cases} == {Case(1, lookups=128)}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Case(5, formula="x"), "formula must be one of"),
        (lambda: Case(5, skew="x"), "skew must be uniform"),
        (lambda: Case(0), "rows is 0"),
        (lambda: Case(2**31), "32-bit ids"),
    ],
    ids=["formula", "law", "no rows", "too many rows"],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(call, told):
    with pytest.raises(ConfigError, match=told):
        call()
