# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain compare`: cost of sparse and dense updates on this machine, measured and drawn."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsetrain.cli.options import AsJson, setting_type
from sparsetrain.cli.output import emit, format_table, note
from sparsetrain.cli.output_files import replace_file, require_writable
from sparsetrain.cli.plot import check_plot, draw
from sparsetrain.cli.stop import StopSignals
from sparsetrain.errors import ConfigError
from sparsetrain.system.chart import Chart, Series
from sparsetrain.training.progress import format_count, format_seconds

if TYPE_CHECKING:
    import sparsetrain as st

    Measurements = Sequence[st.compare.Measurement]


def compare(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for results and plots; replaces files.")
    ] = Path("compare"),
    formula: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="sgd, momentum, adagrad, adam, ...")
    ] = None,
    lookups: Annotated[int, typer.Option(help="Ids of a step.")] = 2048,
    width: Annotated[int, typer.Option(help="Width of a row.")] = 16,
    skew: Annotated[
        str, typer.Option(help="Distribution of the ids: uniform, zipf1.05 or the like.")
    ] = "uniform",
    from_data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Tables and ids of your click logs.")
    ] = None,
    schema: setting_type("--schema") = None,  # type: ignore[valid-type]
    from_run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Tables and data of a run.")
    ] = None,
    tables: Annotated[
        str | None, typer.Option(metavar="ROWS,...", help="Tables of these row counts.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of your data in a step.")] = 2048,
    as_json: AsJson = False,
) -> None:
    """Measure sparse and dense updates of tables on this machine.

    Reports the smallest table for which the sparse update is cheaper.
    """
    import sparsetrain as st

    require_writable(out)
    formulas = formula or ["sgd", "adagrad"]
    base = st.compare.Case(1, lookups, width, skew, formulas[0])
    own = bool(tables or from_data or from_run)
    if own and formula and len(formula) > 1:
        raise ConfigError(
            "--formula: only one formula can be compared on your own tables (--tables, "
            "--from-data, --from-run): name one"
        )
    if schema is not None and (from_data is None or from_run or tables):
        raise ConfigError("--schema names the columns of --from-data, and needs that option")
    begin = time.monotonic()
    with StopSignals():
        if tables is not None:
            planned = st.compare.tables_of_rows(_parse_rows(tables), base)
        elif from_run is not None:
            data = None if from_data is None else str(from_data)
            planned = st.compare.tables_of_run(
                from_run, base, batch_size, data=data, formula=bool(formula)
            )
        elif from_data is not None:
            file = str(from_data)
            encoder = st.data.Encoder.fit(file, schema=schema) if schema else None
            planned = st.compare.tables_of_data(file, base, batch_size, encoder=encoder)
        else:
            planned = st.compare.sweep(base, formulas)
        arms = [name for name, arm in st.compare.ARMS.items() if not (own and arm.of_sweeps)]
        made = _measure(planned, arms, out / "compare.json")
        files = [out / "compare.json", *_draw(_by_formula(made), out)]
    seconds = time.monotonic() - begin
    summary = f"{format_count(len(files), 'file')} in {out}, after {format_seconds(seconds)}"
    result = {**_plain(made), "seconds": seconds, "files": files}
    emit(result, "\n".join([*_describe(made), summary]), as_json)


def _parse_rows(text: str) -> dict[str, int]:
    """Return names and rows of tables from row counts separated by commas."""
    try:
        return {f"T{n}": int(part) for n, part in enumerate(text.split(","), start=1)}
    except ValueError:
        raise ConfigError(
            f"--tables {text}: expected the rows of each table, such as 1000,50000"
        ) from None


def _measure(planned: Sequence[tuple[Any, Any]], arms: Sequence[str], out: Path) -> Measurements:
    """Measure all cases; print each case before it is measured, and write the results after it."""
    import sparsetrain as st

    made: list[st.compare.Measurement] = []
    for number, (case, ids) in enumerate(planned, start=1):
        note(f"{number} of {len(planned)}: {case}")
        made += [st.compare.measure(arm, case, ids) for arm in arms]
        with replace_file(out) as draft:
            draft.write_text(json.dumps(_plain(made), indent=1))
    return made


def _plain(made: Measurements) -> dict[str, Any]:
    from sparsetrain.runtime.machine import describe_machine

    measured = [
        {**m._asdict(), **asdict(m.case), "case": str(m.case)} for m in made if not m.left_out
    ]
    left_out = [{"arm": m.arm, **asdict(m.case), "reason": m.left_out} for m in made if m.left_out]
    return {
        "machine": describe_machine(),
        "measurements": measured,
        "crossings": _crossings(made),
        "left_out": left_out,
    }


def _by_formula(made: Measurements) -> dict[str, Measurements]:
    measured = [m for m in made if not m.left_out]
    formulas = dict.fromkeys(m.case.formula for m in measured)
    return {name: [m for m in measured if m.case.formula == name] for name in formulas}


def _describe(made: Measurements) -> Iterator[str]:
    from sparsetrain.runtime.machine import describe_machine

    machine = describe_machine()
    yield f"{machine['processor']}, {machine['threads']} threads\n"
    yield from map(_table, _by_formula(made).values())
    for formula, rows in _crossings(made).items():
        where = "nowhere" if rows is None else f"from {rows:,} rows on"
        yield f"{formula}: sparse is faster than dense {where}"
    for reason in dict.fromkeys(m.left_out for m in made if m.left_out):
        cases = [m for m in made if m.left_out == reason]
        where = str(cases[0].case) if len(cases) == 1 else f"{len(cases)} cases"
        yield f"left out: {cases[0].arm}, {where}: {reason}"


def _table(points: Measurements) -> str:
    arms = list(dict.fromkeys(p.arm for p in points))
    names = ["table"] if points[0].case.label else []
    ratios = [arm for arm in ("stock", "dense") if {arm, "sparse"} <= {*arms}]
    rows = [[*names, "rows", "unique", *arms]]
    rows[0] += [f"{arm}/sparse" for arm in ratios] + [f"{arm}, MB" for arm in arms]
    for case in dict.fromkeys(p.case for p in points):
        by_arm = {p.arm: p for p in points if p.case == case}
        row = [*(case.label for _ in names), f"{case.rows:,}"]
        row.append(f"{next(iter(by_arm.values())).unique:,.0f}")
        row += [_time(by_arm.get(arm)) for arm in arms]
        row += [_ratio(by_arm.get(arm), by_arm.get("sparse")) for arm in ratios]
        row += [f"{by_arm[a].memory_bytes / 1e6:,.2f}" if a in by_arm else "-" for a in arms]
        rows.append(row)
    formula = points[0].case.formula
    title = f"{formula}: median µs of an update (p10 to p90), memory on top of table and slots"
    return f"{title}\n{format_table(rows)}\n"


def _time(m: st.compare.Measurement | None) -> str:
    return f"{_us(m.median_us)} ({_us(m.p10_us)} to {_us(m.p90_us)})" if m else "-"


def _us(time: float) -> str:
    return f"{time:,.0f}" if time >= 100 else f"{time:.1f}"


def _ratio(m: st.compare.Measurement | None, sparse: st.compare.Measurement | None) -> str:
    return f"{m.median_us / sparse.median_us:,.1f}" if m and sparse else "-"


def _crossings(made: Measurements) -> dict[str, int | None]:
    """Return, by formula, the number of rows from which a sweep's sparse update is faster."""
    return {
        formula: crossing([(m.case.rows, m.arm, m.median_us) for m in points])
        for formula, points in _by_formula(made).items()
        if not points[0].case.label
    }


def crossing(times: Sequence[tuple[int, str, float]]) -> int | None:
    """Return the number of rows from which "sparse" is always faster than "dense", or None.

    `times` has the number of rows, the arm (such as "sparse") and the time of each measurement.
    """
    by_arm = {arm: {n: t for n, a, t in times if a == arm} for arm in ("dense", "sparse")}
    found = None
    for rows, taken in sorted(by_arm["sparse"].items(), reverse=True):
        if taken >= by_arm["dense"].get(rows, math.inf):
            break
        found = rows
    return found


def _draw(groups: Mapping[str, Measurements], out: Path) -> list[Path]:
    """Plot time and memory against rows, one plot for each formula."""
    files = [out / f"{formula}.png" for formula in groups]
    try:
        for file, (formula, points) in zip(files, groups.items(), strict=True):
            check_plot("--out", file)
            times = _chart("time of an update (µs)", points, lambda m: m.median_us)
            memory = _chart("bytes on top of table and slots", points, lambda m: m.memory_bytes)
            draw([times, memory], [formula], file)
    except ConfigError as error:  # results are useful without plots
        note(f"no plots: {error}")
        return []
    return files


def _chart(title: str, points: Measurements, value: Callable[[Any], float]) -> Chart:
    by_arm: dict[str, list[tuple[float, float]]] = {}
    for m in sorted(points, key=lambda m: m.case.rows):
        by_arm.setdefault(m.arm, []).append((m.case.rows, value(m)))
    series = [Series(arm, n, "validation", own) for n, (arm, own) in enumerate(by_arm.items())]
    return Chart(title, "rows of the table", series, is_log=True)
