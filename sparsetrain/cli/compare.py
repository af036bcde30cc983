# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain compare`: cost of sparse and dense updates on this machine, measured and drawn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsetrain.cli.options import AsJson, setting_type
from sparsetrain.cli.output import emit, format_table, note
from sparsetrain.cli.output_files import require_writable
from sparsetrain.cli.stop import StopSignals
from sparsetrain.errors import ConfigError
from sparsetrain.training.progress import format_count, format_seconds

if TYPE_CHECKING:
    import sparsetrain as st


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
    """Measure what sparse and dense updates cost here.

    Reports the table size from which on the sparse one is cheaper.
    """
    import sparsetrain as st

    require_writable(out)
    formulas = formula or ["sgd", "adagrad"]
    base = st.compare.Case(1, lookups, width, skew, formulas[0])
    own = bool(tables or from_data or from_run)
    if own and formula and len(formula) > 1:
        raise ConfigError("--formula: name one formula for your own tables")
    if schema is not None and (from_data is None or from_run or tables):
        raise ConfigError("--schema names the columns of --from-data, and needs that option")
    begin = time.monotonic()
    with StopSignals():
        if tables is not None:
            planned = st.compare.tables_of_rows(_parse_rows(tables), base)
        elif from_run is not None:
            planned = st.compare.tables_of_run(
                from_run, base, batch_size, data=from_data, formula=bool(formula)
            )
        elif from_data is not None:
            file = str(from_data)
            encoder = st.data.Encoder.fit(file, schema_file=schema) if schema else None
            planned = st.compare.tables_of_data(file, base, batch_size, encoder=encoder)
        else:
            planned = st.compare.Tables(st.compare.sweep(base, formulas), {})
        report = _measure(planned, [a for a in st.compare.ARMS if not (own and a == "exact")], out)
        files = [report.write(out), *_draw(report, out)]
    seconds = time.monotonic() - begin
    result = {**report.to_dict(), "seconds": seconds, "files": files}
    summary = f"{format_count(len(files), 'file')} in {out}, after {format_seconds(seconds)}"
    emit(result, f"{_describe(report)}\n{summary}", as_json)


def _measure(planned: st.compare.Tables, arms: Sequence[str], out: Path) -> st.compare.Report:
    """Measure all cases; say which is next, and write the results after each."""
    import sparsetrain as st

    numbers = count(1)
    return st.compare.run(
        planned.cases,
        arms=arms,
        ids=planned.ids,
        progress=lambda case: note(f"{next(numbers)} of {len(planned.cases)}: {case}"),
        on_case=lambda report: report.write(out),
    )


def _draw(report: st.compare.Report, out: Path) -> list[Path]:
    import sparsetrain as st

    try:
        return st.compare.draw(report, out)
    except ConfigError as error:  # results are worth having without plots
        note(f"no plots: {error}")
        return []


def _parse_rows(text: str) -> dict[str, int]:
    """Return names and rows of tables from row counts with commas between them."""
    try:
        return {f"T{n}": int(part) for n, part in enumerate(text.split(","), start=1)}
    except ValueError:
        raise ConfigError(
            f"--tables {text}: expected the rows of each table, such as 1000,50000"
        ) from None


def _describe(report: st.compare.Report) -> str:
    """Return all of a report as text."""
    machine = report.machine
    parts = [f"{machine['processor']}, {machine['threads']} threads\n"]
    parts += [_table(points) for points in report.groups.values()]
    parts += [_describe_crossing(crossing) for crossing in report.crossings]
    parts += _describe_left_out(report)
    return "\n".join(parts)


def _table(points: Sequence[st.compare.Measurement]) -> str:
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
        row += [_memory(by_arm.get(arm)) for arm in arms]
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


def _memory(m: st.compare.Measurement | None) -> str:
    """By formula, which the measured bytes confirm but for what the system rounds."""
    return f"{m.formula_memory_bytes / 1e6:,.2f}" if m else "-"


def _describe_crossing(c: st.compare.Crossing) -> str:
    head = f"{c.formula}, {c.lookups:,} lookups: "
    if c.rows is None:
        rows = " and ".join(f"{rows:,}" for rows in c.exceptions)
        exceptions = f", except at {rows}" if rows else ""
        return f"{head}{c.below} is faster from {c.least:,} to {c.most:,} rows{exceptions}"
    return f"{head}{c.below} is faster below about {c.rounded:,} rows, {c.above} above"


def _describe_left_out(report: st.compare.Report) -> Iterator[str]:
    for reason in dict.fromkeys(o.reason for o in report.left_out):
        cases = [o for o in report.left_out if o.reason == reason]
        where = str(cases[0].case) if len(cases) == 1 else f"{len(cases)} cases"
        yield f"left out: {cases[0].arm}, {where}: {reason}"
