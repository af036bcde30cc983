# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain compare`: cost of sparse and dense updates on this machine, measured and drawn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import count, groupby
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

# Sweep -> heading of its first column, and the field of the case shown there.
_AXES = {
    "rows": ("rows", "rows"),
    "lookups": ("lookups", "lookups"),
    "width": ("width", "width"),
    "skew": ("ids", "skew"),
    "pooling": ("ids of a bag", "pooling"),
    "threads": ("threads", "threads"),
    "tables": ("table", "label"),
}


def compare(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for results and plots; replaces files.")
    ] = Path("compare"),
    full: Annotated[
        bool, typer.Option("--full", help="Every axis to its ends, on all arms: takes long.")
    ] = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS", help="rows, lookups, width, skew, pooling or threads."),
    ] = None,
    formula: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="sgd, momentum, adagrad, adam, ...")
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only stock, dense, sparse or exact.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows of the table, unless swept.")] = 1_000_000,
    lookups: Annotated[int, typer.Option(help="Ids of a step; with bags, bags.")] = 2048,
    width: Annotated[int, typer.Option(help="Width of a row.")] = 16,
    skew: Annotated[
        str, typer.Option(help="Distribution of the ids: uniform, same, zipf1.05 or the like.")
    ] = "uniform",
    pooling: Annotated[int, typer.Option(help="Ids of a bag.")] = 1,
    threads: Annotated[int, typer.Option(help="Kernel threads; 0 for all cores.")] = 0,
    from_data: Annotated[
        Path | None,
        typer.Option("--from-data", metavar="FILE", help="Tables and ids of your click logs."),
    ] = None,
    schema: setting_type("--schema") = None,  # type: ignore[valid-type]
    from_run: Annotated[
        Path | None,
        typer.Option("--from-run", metavar="RUN", help="Tables and data of a run."),
    ] = None,
    tables: Annotated[
        str | None, typer.Option(metavar="ROWS,...", help="Tables of these row counts.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="Rows of your data in a step.")
    ] = 2048,
    as_json: AsJson = False,
) -> None:
    """Measure what sparse and dense updates cost here.

    Reports the table size from which on the sparse one is cheaper.
    """
    import sparsetrain as st

    require_writable(out)
    base = st.compare.Case(
        rows, lookups * pooling, width, pooling, skew, (formula or ["sgd"])[0], threads
    )
    own = bool(tables or from_data or from_run)
    if own and (full or sweep):
        raise ConfigError("your own tables are not a sweep: leave out --sweep and --full")
    if own and formula and len(formula) > 1:
        raise ConfigError("--formula: name one formula for your own tables")
    if schema is not None and (from_data is None or from_run or tables):
        raise ConfigError("--schema names the columns of --from-data, and needs that option")
    begin = time.monotonic()
    with StopSignals():
        if own:
            read = _own_tables(base, tables, from_data, from_run, schema, batch_size, bool(formula))
            planned = st.compare.with_storage(read)
        else:
            planned = st.compare.Tables(st.compare.plan(base, sweep, formula, full=full), {})
        items = [item for item in _select_arms(planned.items, arm) if item.arms]
        numbers, total = count(1), len(list(groupby(item.case for item in items)))
        report = st.compare.run(
            items,
            ids=planned.ids,
            progress=lambda case: note(f"{next(numbers)} of {total}: {case}"),
            on_case=lambda report: report.write(out),
        )
        files = [report.write(out), *_draw(report, out)]
    seconds = time.monotonic() - begin
    result = {**report.to_dict(), "seconds": seconds, "files": files}
    summary = f"{format_count(len(files), 'file')} in {out}, after {format_seconds(seconds)}"
    emit(result, f"{_describe(report)}\n{summary}", as_json)


def _own_tables(
    base: st.compare.Case,
    tables: str | None,
    data: Path | None,
    run: Path | None,
    schema: str | None,
    batch_size: int,
    formula_named: bool,
) -> st.compare.Tables:
    """Return a case for each table that is described by its rows, a run or data."""
    import sparsetrain as st

    if tables is not None:
        return st.compare.Tables(st.compare.tables_of_rows(_parse_rows(tables), base), {})
    if run is not None:
        return st.compare.tables_of_run(run, base, batch_size, data=data, formula=formula_named)
    encoder = st.data.Encoder.fit(str(data), schema_file=schema) if schema else None
    return st.compare.tables_of_data(str(data), base, batch_size, encoder=encoder)


def _select_arms(
    items: Sequence[st.compare.Item], arms: list[str] | None
) -> Iterator[st.compare.Item]:
    """Replace the arms of a plan by `--arm`; a whole storage keeps to those it can afford."""
    for item in items:
        if arms is None:
            yield item
        elif item.sweep == "storage":
            yield item._replace(arms=tuple(arm for arm in item.arms if arm in arms))
        else:
            yield item._replace(arms=tuple(arms))


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
    points = sorted(report.measurements, key=_group)
    parts += [_table(list(group)) for _, group in groupby(points, key=_group)]
    parts += [_describe_crossing(crossing) for crossing in report.crossings]
    parts += _describe_left_out(report)
    return "\n".join(parts)


def _group(m: st.compare.Measurement) -> tuple[int, str]:
    """The storage of a model is the last row of its tables."""
    axis = "tables" if m.sweep == "storage" else m.sweep
    return list(_AXES).index(axis), m.case.formula


def _table(points: Sequence[st.compare.Measurement]) -> str:
    heading, field = _AXES[points[0].sweep]
    arms = list(dict.fromkeys(p.arm for p in points))
    size = ["rows"] if field == "label" else []  # a table's name does not say how large it is
    ratios = [arm for arm in ("stock", "dense") if {arm, "sparse"} <= {*arms}]
    rows = [[heading, *size, "unique", *arms]]
    rows[0] += [f"{arm}/sparse" for arm in ratios] + [f"{arm}, MB" for arm in arms]
    for case in dict.fromkeys(p.case for p in points):
        by_arm = {p.arm: p for p in points if p.case == case}
        value = getattr(case, field)
        row = [f"{value:,}" if isinstance(value, int) else value, *(f"{case.rows:,}" for _ in size)]
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
