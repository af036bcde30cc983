# SPDX-License-Identifier: Apache-2.0
"""A comparison from plan to files: what is measured, what is left out and why, where arms cross."""

import csv
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.compare import (
    AXES,
    Case,
    Item,
    Measurement,
    Report,
    comparison,
    draw,
    plan,
    run,
)
from sparsetrain.compare import memory as memory_module
from sparsetrain.compare.figures import PICTURES
from sparsetrain.compare.others import Others
from sparsetrain.compare.series import apart
from sparsetrain.errors import ConfigError, DataError

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


def test_quantiles_are_in_order_and_rates_follow_from_them(report):
    for m in report.measurements:
        assert 0 < m.p10_us <= m.median_us <= m.p90_us
        assert m.bandwidth == pytest.approx(m.traffic_bytes / m.median_us * 1e6)
        assert m.roof_us > 0 and m.roof_share == pytest.approx(m.roof_us / m.median_us)
        assert 0 < m.unique <= m.case.lookups
    sparse = [m for m in report.measurements if m.arm == "sparse"]
    assert all(0 < m.writes_us < m.median_us for m in sparse)
    # Kernel and roof are timed in steps of their own: of so small a table either may be the slower.
    assert all(m.kernel_us > 0 and m.kernel_roof_us > 0 for m in sparse)
    others = [m for m in report.measurements if m.arm != "sparse"]
    assert all(m.kernel_us is m.kernel_roof_us is None for m in others)
    assert all(m.lookup_us > 0 and m.after_lookup_us > 0 for m in sparse)
    assert all(m.lookup_us is m.after_lookup_us is None for m in others)


def test_rows_that_are_caught_up_before_a_lookup_are_not_timed_after_it():
    (found,) = run([Item("rows", replace(SMALL, formula="adam"), ("exact",))]).measurements
    assert found.arm == "exact" and found.median_us > 0
    assert found.lookup_us is found.after_lookup_us is None


def test_memory_by_formula_grows_with_rows_on_dense_arms_alone(report):
    of = {(m.arm, m.case.rows): m.formula_memory_bytes for m in report.of("rows")}
    assert of["dense", 600] - of["dense", 300] == 300 * SMALL.row_bytes
    assert of["stock", 600] == 2 * of["stock", 300]
    assert of["sparse", 600] == of["sparse", 300] == 32 * SMALL.lookups


def test_a_report_is_written_read_and_written_the_same(report, tmp_path):
    table, whole = report.write(tmp_path / "new" / "folder")
    again = Report.read(whole)
    assert json.dumps(again.to_dict()) == json.dumps(report.to_dict())
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == len(report.measurements)
    assert float(rows[0]["median_us"]) == report.measurements[0].median_us


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"machine": 1}'])
def test_a_file_that_is_no_report_is_refused(content, tmp_path):
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(DataError, match="no report"):
        Report.read(file)


def test_pictures_of_all_sweeps_are_drawn(report, tmp_path):
    pytest.importorskip("matplotlib")
    more = [replace(m, sweep=sweep) for sweep in [*AXES, "tables"] for m in report.of("rows")]
    files = draw(Report(report.machine, report.stream, more), str(tmp_path))
    assert {file.suffix for file in files} == {".png", ".svg"}
    assert len(files) == 2 * 9
    assert all(file.stat().st_size > 5000 for file in files)


def test_numbers_of_a_short_axis_are_written_out(report):
    pytest.importorskip("matplotlib")
    dense = next(m for m in report.of("rows") if m.arm == "dense")
    points = [
        replace(dense, case=replace(SMALL, width=width), median_us=us, roof_us=None)
        for width, us in ((8, 30.0), (16, 40.0))
    ]
    near = Report(report.machine, 2 * points[0].bandwidth, points)
    figure = PICTURES["bandwidth-by-width"][1](near, points)
    figure.draw_without_rendering()
    written = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert written and all(float(number) > 0 for number in written)


def test_a_table_too_large_for_memory_is_left_out_and_said(monkeypatch):
    monkeypatch.setattr(comparison, "available_bytes", lambda: 2**28 + SMALL.table_bytes)
    found = run([Item("rows", SMALL, ("dense", "sparse"))])
    assert not found.measurements
    assert {o.arm for o in found.left_out} == {"dense", "sparse"}
    assert all("GB are free" in o.why for o in found.left_out)


def test_a_report_of_an_earlier_version_is_read(report, tmp_path):
    written = json.loads(json.dumps(report.to_dict()))
    for row in written["measurements"]:
        for name in ("kernel_roof_us", "lookup_us", "after_lookup_us"):
            del row[name]
    (tmp_path / "compare.json").write_text(json.dumps(written))
    again = Report.read(str(tmp_path / "compare.json"))
    assert [m.median_us for m in again.measurements] == [m.median_us for m in report.measurements]
    assert {m.kernel_roof_us for m in again.measurements} == {None}
    assert {m.after_lookup_us for m in again.measurements} == {None}


def test_threads_of_a_case_hold_for_it_alone():
    before = runtime.num_threads()
    found = run([Item("threads", replace(SMALL, threads=1), ("sparse",))])
    assert found.measurements[0].case.threads == 1
    assert runtime.num_threads() == before


def measurement(arm: str, rows: int, us: float) -> Measurement:
    figures = {"p10_us": us, "p90_us": us, "traffic_bytes": 1.0, "formula_memory_bytes": 1}
    names = ("first_us", "writes_us", "kernel_us", "counted_bytes", "memory_bytes", "roof_us")
    rest = dict.fromkeys((*names, "kernel_roof_us", "lookup_us", "after_lookup_us"))
    return Measurement(
        "rows",
        arm,
        Case(rows),
        unique=1.0,
        steps=10,
        median_us=us,
        **figures,
        **rest,
    )


def report_of(dense: dict[int, float], sparse: dict[int, float]) -> Report:
    times = [("dense", dense), ("sparse", sparse)]
    made = [measurement(arm, rows, us) for arm, known in times for rows, us in known.items()]
    return Report({}, 1.0, made)


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
    assert found.except_at == (300,)


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
        (lambda: Case(5, lookups=7, pooling=2), "no whole number of bags"),
    ],
    ids=["axis", "arm", "formula", "law", "no rows", "too many rows", "bags"],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(call, told):
    with pytest.raises(ConfigError, match=told):
        call()


def test_memory_that_work_needs_is_seen():
    found = memory_module.peak_of(lambda: np.ones(2**22).sum())
    if found is None:
        pytest.skip("the system does not tell")
    assert 2**25 * 0.9 < found < 2**25 * 1.5


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ([], []),
        ([1, 9], [1, 9]),
        ([5, 5], [4.5, 5.5]),
        ([0, 5, 5, 5], [0, 4, 5, 6]),
        ([5, 5.5, 9], [4.75, 5.75, 9]),
    ],
)
def test_names_beside_curves_are_parted_by_the_least_move(heights, expected):
    assert apart(heights, 1) == pytest.approx(expected)


def test_what_other_processes_use_is_seen():
    others = Others()
    spin = "import time\nend = time.time() + 1\nwhile time.time() < end: pass"
    with others.watched():
        subprocess.run([sys.executable, "-c", spin], check=True)
    if others.cores is None:
        pytest.skip("the system does not say")
    assert others.cores > 0.5


def test_what_took_long_on_a_smaller_table_is_left_out(monkeypatch):
    monkeypatch.setattr(comparison, "_PATIENCE", 0.0)
    cases = [replace(SMALL, rows=rows) for rows in (300, 600)]
    found = run([Item("rows", case, ("dense", "sparse")) for case in cases])
    assert [(m.arm, m.case.rows) for m in found.measurements] == [
        ("dense", 300),
        ("sparse", 300),
        ("sparse", 600),
    ]
    (left,) = found.left_out
    assert (left.arm, left.case.rows) == ("dense", 600)
    assert left.why == "a step on 300 rows took 0.0 s"
