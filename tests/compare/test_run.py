# SPDX-License-Identifier: Apache-2.0
"""A comparison from plan to files: what is measured, what is left out and why, where arms cross."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sparsetrain.compare import Case, Measurement, Report, draw, measure, run, sweep
from sparsetrain.errors import ConfigError

SMALL = Case(300, lookups=64, width=8)


@pytest.fixture(scope="module")
def report():
    return run([replace(SMALL, rows=rows) for rows in (300, 600)])


def test_every_arm_is_measured_on_ten_batches_or_says_why_not(report):
    assert {m.arm for m in report.measurements} == {"stock", "dense", "sparse"}
    assert all(m.steps >= 10 for m in report.measurements)
    assert {o.arm for o in report.left_out} == {"exact"}


def test_quantiles_are_in_order(report):
    for m in report.measurements:
        assert 0 < m.p10_us <= m.median_us <= m.p90_us
        assert 0 < m.unique <= m.case.lookups


def test_a_large_table_is_warmed_up_before_its_steps_count(monkeypatch):
    touched = []
    monkeypatch.setattr(measure, "_LARGE_BYTES", 600 * SMALL.row_bytes)
    monkeypatch.setattr(measure, "_warm_up", lambda step, case: touched.append(case.rows))
    run([replace(SMALL, rows=n) for n in (300, 600)], arms=("dense", "sparse"))
    assert touched == [600]


def test_memory_by_formula_grows_with_rows_on_dense_arms_alone(report):
    of = {(m.arm, m.case.rows): m.formula_memory_bytes for m in report.measurements}
    assert of["dense", 600] - of["dense", 300] == 300 * SMALL.row_bytes
    assert of["stock", 600] == 2 * of["stock", 300]
    assert of["sparse", 600] == of["sparse", 300] == 32 * SMALL.lookups


def test_a_report_is_written_as_json(report, tmp_path):
    file = report.write(tmp_path / "new" / "folder")
    written = json.loads(file.read_text())
    assert written == json.loads(json.dumps(report.to_dict()))
    assert written["measurements"][0]["median_us"] == report.measurements[0].median_us
    assert [path.name for path in file.parent.iterdir()] == ["compare.json"]


def test_plots_of_sweeps_and_of_tables_are_drawn(report, tmp_path):
    pytest.importorskip("matplotlib")
    tables = [replace(m, case=replace(m.case, label=str(m.case.rows))) for m in report.measurements]
    files = draw(Report(report.machine, [*report.measurements, *tables]), str(tmp_path))
    assert {file.stem for file in files} == {"time-by-rows-sgd", "memory-by-rows-sgd", "tables-sgd"}
    assert {file.suffix for file in files} == {".png", ".svg"}
    assert all(file.stat().st_size > 5000 for file in files)


def test_a_table_too_large_for_memory_is_left_out_and_said(monkeypatch):
    monkeypatch.setattr(measure, "available_bytes", lambda: 2**28 + SMALL.table_bytes)
    found = run([SMALL], arms=("dense", "sparse"))
    assert not found.measurements
    assert {o.arm for o in found.left_out} == {"dense", "sparse"}
    assert all("GB are free" in o.reason for o in found.left_out)


def measurement(arm: str, rows: int, us: float) -> Measurement:
    return Measurement(arm, Case(rows), 1.0, 10, us, us, us, None, 1)


def report_of(dense: dict[int, float], sparse: dict[int, float]) -> Report:
    times = [("dense", dense), ("sparse", sparse)]
    made = [measurement(arm, rows, us) for arm, known in times for rows, us in known.items()]
    return Report({}, made)


def test_arms_cross_where_the_lines_between_points_meet():
    (found,) = report_of({100: 1.0, 10_000: 100.0}, {100: 10.0, 10_000: 10.0}).crossings
    assert found.rows == pytest.approx(1000)
    assert (found.below, found.above) == ("dense", "sparse")


def test_arms_that_do_not_cross_say_which_is_faster_and_how_far_was_looked():
    (found,) = report_of({100: 20.0, 900: 99.0}, {100: 10.0, 900: 10.0}).crossings
    assert found.rows is None
    assert (found.below, found.above, found.least, found.most) == ("sparse", "sparse", 100, 900)


def test_a_table_that_is_an_exception_is_no_crossing():
    dense = {100: 20.0, 300: 9.0, 900: 99.0}
    (found,) = report_of(dense, dict.fromkeys(dense, 10.0)).crossings
    assert found.rows is None and found.below == found.above == "sparse"
    assert found.exceptions == (300,)


def test_a_sweep_changes_the_rows_alone():
    cases = sweep(Case(1, lookups=128), ["sgd", "adam"])
    assert len({case.rows for case in cases}) == len(cases) / 2
    assert {replace(case, rows=1, formula="sgd") for case in cases} == {Case(1, lookups=128)}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Case(5, formula="x"), "formula is one of"),
        (lambda: Case(5, skew="x"), "skew is uniform"),
        (lambda: Case(0), "rows is 0"),
        (lambda: Case(2**31), "32-bit ids"),
    ],
    ids=["formula", "law", "no rows", "too many rows"],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(call, told):
    with pytest.raises(ConfigError, match=told):
        call()


def test_memory_that_work_needs_is_seen():
    found = measure.measure_peak(lambda: np.ones(2**22).sum())
    if found is None:
        pytest.skip("the system does not tell")
    assert 2**25 * 0.9 < found < 2**25 * 1.5


def test_what_took_long_on_a_smaller_table_is_left_out(monkeypatch):
    monkeypatch.setattr(measure, "_MOST_SECONDS", 0.0)
    cases = [replace(SMALL, rows=rows) for rows in (300, 600)]
    found = run(cases, arms=("dense", "sparse"))
    assert [(m.arm, m.case.rows) for m in found.measurements] == [
        ("dense", 300),
        ("sparse", 300),
        ("sparse", 600),
    ]
    (left,) = found.left_out
    assert (left.arm, left.case.rows) == ("dense", 600)
    assert left.reason == "a step on 300 rows took 0.0 s"
