# SPDX-License-Identifier: Apache-2.0
"""A comparison from plan to files: what is measured, what is left out and why, where arms cross."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.compare import AXES, Case, Item, Measurement, Report, comparison, draw, plan, run
from sparsetrain.compare import measure as measure_module
from sparsetrain.compare.figures import PLOTS
from sparsetrain.errors import ConfigError

SMALL = Case(300, lookups=64, width=8)


@pytest.fixture(scope="module")
def report():
    cases = [replace(SMALL, rows=rows) for rows in (300, 600)]
    wide = replace(SMALL, width=16)
    items = [Item("rows", case, ("stock", "dense", "sparse", "exact")) for case in cases]
    return run([*items, Item("width", wide, ("dense", "sparse"))])


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
    monkeypatch.setattr(measure_module, "_LARGE_BYTES", 600 * SMALL.row_bytes)
    monkeypatch.setattr(measure_module, "_warm_up", lambda step, case: touched.append(case.rows))
    run([Item("rows", replace(SMALL, rows=n), ("dense", "sparse")) for n in (300, 600)])
    assert touched == [600]


def test_memory_by_formula_grows_with_rows_on_dense_arms_alone(report):
    of = {(m.arm, m.case.rows): m.formula_memory_bytes for m in report.of("rows")}
    assert of["dense", 600] - of["dense", 300] == 300 * SMALL.row_bytes
    assert of["stock", 600] == 2 * of["stock", 300]
    assert of["sparse", 600] == of["sparse", 300] == 32 * SMALL.lookups


def test_a_report_is_written_as_json(report, tmp_path):
    file = report.write(tmp_path / "new" / "folder")
    written = json.loads(file.read_text())
    assert written == json.loads(json.dumps(report.to_dict()))
    assert written["measurements"][0]["median_us"] == report.measurements[0].median_us
    assert [path.name for path in file.parent.iterdir()] == ["compare.json"]


def test_plots_of_all_sweeps_are_drawn(report, tmp_path):
    pytest.importorskip("matplotlib")
    more = [replace(m, sweep=sweep) for sweep in [*AXES, "tables"] for m in report.of("rows")]
    files = draw(Report(report.machine, more), str(tmp_path))
    assert {file.suffix for file in files} == {".png", ".svg"}
    assert len(files) == 2 * len(PLOTS)
    assert all(file.stat().st_size > 5000 for file in files)


def test_a_table_too_large_for_memory_is_left_out_and_said(monkeypatch):
    monkeypatch.setattr(comparison, "available_bytes", lambda: 2**28 + SMALL.table_bytes)
    found = run([Item("rows", SMALL, ("dense", "sparse"))])
    assert not found.measurements
    assert {o.arm for o in found.left_out} == {"dense", "sparse"}
    assert all("GB are free" in o.reason for o in found.left_out)


def test_threads_of_a_case_hold_for_it_alone():
    before = runtime.num_threads()
    found = run([Item("threads", replace(SMALL, threads=1), ("sparse",))])
    assert found.measurements[0].case.threads == 1
    assert runtime.num_threads() == before


def measurement(arm: str, rows: int, us: float) -> Measurement:
    return Measurement("rows", arm, Case(rows), 1.0, 10, us, us, us, None, 1)


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


@pytest.mark.parametrize("full", [False, True])
def test_a_plan_sweeps_one_axis_at_a_time(full):
    base = Case(1000, lookups=128)
    for name in AXES:
        cases = [item.case for item in plan(base, [name], ["sgd"], full=full)]
        assert len(set(cases)) == len(cases) >= 1
        changed = {f for case in cases for f in vars(case) if vars(case)[f] != vars(base)[f]}
        allowed = {"width": {"width", "rows"}, "pooling": {"pooling", "lookups"}}.get(name, {name})
        assert changed <= allowed


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: plan(axes=["depth"]), "sweep is one of rows, lookups"),
        (lambda: run([Item("rows", Case(5), ("cheap",))]), "arm is one of stock, dense"),
        (lambda: run([Item("rows", Case(5, formula="x"), ("dense",))]), "formula is one of"),
        (lambda: run([Item("rows", Case(5, skew="x"), ("dense",))]), "skew is uniform"),
        (lambda: Case(0), "rows is 0"),
        (lambda: Case(2**31), "32-bit ids"),
        (lambda: Case(5, lookups=7, pooling=2), "not a multiple of the bag size"),
    ],
    ids=["axis", "arm", "formula", "law", "no rows", "too many rows", "bags"],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(call, told):
    with pytest.raises(ConfigError, match=told):
        call()


def test_memory_that_work_needs_is_seen():
    found = measure_module.measure_peak(lambda: np.ones(2**22).sum())
    if found is None:
        pytest.skip("the system does not tell")
    assert 2**25 * 0.9 < found < 2**25 * 1.5


def test_what_took_long_on_a_smaller_table_is_left_out(monkeypatch):
    monkeypatch.setattr(comparison, "_MOST_SECONDS", 0.0)
    cases = [replace(SMALL, rows=rows) for rows in (300, 600)]
    found = run([Item("rows", case, ("dense", "sparse")) for case in cases])
    assert [(m.arm, m.case.rows) for m in found.measurements] == [
        ("dense", 300),
        ("sparse", 300),
        ("sparse", 600),
    ]
    (left,) = found.left_out
    assert (left.arm, left.case.rows) == ("dense", 600)
    assert left.reason == "a step on 300 rows took 0.0 s"
