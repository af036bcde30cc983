# SPDX-License-Identifier: Apache-2.0
"""What a comparison says of the trainer's choice agrees with its times, or it says why not."""

from dataclasses import replace

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.cli import main
from sparsetrain.cli.compare_auto import describe_auto
from sparsetrain.compare import (
    Case,
    Item,
    Measurement,
    Report,
    Tables,
    auto,
    comparison,
    run,
    tables_of_rows,
    with_storage,
)
from sparsetrain.errors import DataError
from sparsetrain.optim.paths.choice import Choice

BASE = Case(1, lookups=8, width=4)
TWO = {"a": 3, "b": 5}


def model() -> Tables:
    """Two tables, of which the first has given ids."""
    ids = {"a": [np.full(8, step % 3, np.int32) for step in range(20)]}
    return Tables(tables_of_rows(TWO, BASE), ids)


def test_the_storage_has_the_rows_and_the_ids_of_all_tables():
    tables = with_storage(model())
    *apart, whole = tables.items
    assert apart == model().items
    assert (whole.sweep, whole.case.label, whole.arms) == (
        *("storage", "all together"),
        ("dense", "sparse"),
    )
    assert (whole.case.rows, whole.case.lookups, whole.case.width) == (8, 16, 4)
    steps = tables.ids["all together"]
    assert len(steps) == 20 and all(step.dtype == np.int32 for step in steps)
    for number, step in enumerate(steps):
        assert (step[:8] == number % 3).all()
        assert step[8:].min() >= 3 and step[8:].max() < 8


@pytest.mark.parametrize("rows", [{"a": 3}, {"a": 2**31 - 1, "b": 1}], ids=["one", "too many"])
def test_a_single_table_is_its_storage_and_too_many_rows_are_none(rows):
    tables = Tables(tables_of_rows(rows, BASE), {})
    assert with_storage(tables) == tables


def test_a_table_may_have_the_name_of_the_storage():
    tables = with_storage(Tables(tables_of_rows({"all together": 3, "b": 5}, BASE), {}))
    assert [item.case.label for item in tables.items] == ["all together", "b", "(all together)"]
    assert [*tables.ids] == ["(all together)"]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.full(8, 3, np.int32), "ids of 'a', step 1: they go from 3 to 3; its rows are 0 to 2"),
        (np.full(8, -1, np.int32), "they go from -1 to -1"),
        (np.zeros(7, np.int32), r"int32 \(7,\); give \(8,\) whole numbers"),
        (np.zeros(8), "float64"),
    ],
    ids=["beyond", "below", "too few", "no whole numbers"],
)
def test_ids_that_a_table_has_no_rows_for_are_refused(ids, message):
    (item, _), steps = model().items, [np.zeros(8, np.int32), ids]
    with pytest.raises(DataError, match=message):
        run([item._replace(arms=("sparse",))], ids={"a": steps})


def test_a_storage_is_measured_without_its_tables_too(monkeypatch):
    tables = with_storage(model())
    report = run([tables.items[-1]._replace(arms=("sparse",))], ids=tables.ids)
    assert [m.auto for m in report.measurements] == [""]


def choosing(monkeypatch, *dense: int, known: bool = True) -> None:
    """Let the trainer update the tables densely that begin at these rows."""

    def choose(state, name, *_):
        (part,) = state.ranges[name]
        return Choice(tuple(part._replace(first=first) for first in dense), known)

    monkeypatch.setattr(auto, "choose", choose)


@pytest.mark.parametrize(
    ("dense", "expected"),
    [
        ([], ["sparse", "sparse", "sparse"]),
        ([0, 3], ["dense", "dense", "dense"]),
        ([3], ["sparse", "dense", "1 of 2 dense"]),
    ],
    ids=str,
)
def test_each_table_and_their_storage_say_what_the_trainer_takes(monkeypatch, dense, expected):
    choosing(monkeypatch, *dense)
    tables = with_storage(model())
    report = run([item._replace(arms=("sparse",)) for item in tables.items], ids=tables.ids)
    assert [m.auto for m in report.measurements] == expected
    assert report.machine["auto_known"] is True


def test_the_choice_is_that_of_as_many_threads_as_the_case_has(monkeypatch):
    asked = []
    found = auto.Auto(["sparse"], known=False)
    monkeypatch.setattr(
        comparison, "auto_paths", lambda cases: asked.append(runtime.num_threads()) or found
    )
    items = [Item("threads", replace(BASE, rows=9, threads=n), ("sparse",)) for n in (1, 0)]
    report = run(items)
    assert asked == [1, runtime.num_threads()]
    assert report.machine["auto_known"] is False


def measured(sweep: str, label: str, auto: str, **times: float) -> list[Measurement]:
    """Measurements of one case by some arms."""
    figures = {"p10_us": 1.0, "p90_us": 1.0, "traffic_bytes": 1.0, "formula_memory_bytes": 1}
    names = ("first_us", "writes_us", "kernel_us", "counted_bytes", "memory_bytes", "roof_us")
    none = dict.fromkeys((*names, "kernel_roof_us", "lookup_us", "after_lookup_us"))
    case = Case(3, label=label)
    return [
        Measurement(sweep, arm, case, 1.0, 10, us, auto=auto, **figures, **none)
        for arm, us in times.items()
    ]


TABLES = [*measured("tables", "a", "dense", sparse=1, dense=2)]
TABLES += measured("tables", "b", "dense", sparse=2, dense=1)


@pytest.mark.parametrize(
    ("points", "known", "told"),
    [
        (measured("rows", "table", "sparse", sparse=1, dense=2), True, []),
        (measured("rows", "table", "sparse", sparse=1.04, dense=1), True, []),
        (
            measured("rows", "table", "sparse", sparse=1.06, dense=1),
            True,
            ["slower path here for 3 rows at 2,048 uniform ids: the trainer tries both"],
        ),
        (measured("rows", "table", "dense", sparse=1), True, []),
        (measured("rows", "table", "sparse", sparse=1, dense=2), False, ["too busy to tell"]),
        (TABLES, True, ["with a model of all these tables", "here for a: it decides for all"]),
        (
            TABLES + measured("storage", "all together", "dense", sparse=3, dense=2),
            True,
            ["with a model of all these tables", "here for a: it decides for all"],
        ),
        (
            TABLES + measured("storage", "all together", "dense", sparse=2, dense=3),
            True,
            ["model of all", "for a: it decides", "for all together: the trainer tries both"],
        ),
        (
            measured("storage", "all together", "1 of 2 dense", sparse=2, dense=3),
            True,
            [],
        ),
    ],
)
def test_a_choice_that_is_not_the_faster_path_is_named_and_explained(points, known, told):
    lines = describe_auto(Report({"auto_known": known}, 1.0, points))
    assert len(lines) == len(told)
    assert all(part in line for part, line in zip(told, lines, strict=True))


def test_many_slower_choices_are_counted():
    points = [m for n in range(9) for m in measured("rows", f"t{n}", "dense", sparse=1, dense=2)]
    (line,) = describe_auto(Report({}, 1.0, points))
    assert "for 9 of 9 cases" in line


def test_the_command_ends_the_tables_with_their_storage(tmp_path, capsys):
    options = ["--tables", "30,400", "--lookups", "64", "--arm", "sparse", "--arm", "stock"]
    assert main(["compare", *options, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    (line,) = (line for line in printed.splitlines() if line.startswith("all together"))
    assert line.split()[2] == "430"
    assert "auto: what the trainer does with a model of all these tables" in printed
    report = Report.read(tmp_path / "compare.json")
    assert {m.arm for m in report.of("storage")} == {"sparse"}


def test_the_command_says_nothing_of_a_row_that_is_not_there(tmp_path, capsys):
    options = ["--tables", "30,400", "--lookups", "64", "--arm", "stock"]
    assert main(["compare", *options, "--out", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "sorts and updates them together\n" in told.out
    assert "of 2: T2" in told.err
