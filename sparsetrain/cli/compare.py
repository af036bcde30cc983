# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain compare`: cost of sparse and dense updates on this machine, measured and drawn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sparsetrain.cli.compare_table import describe
from sparsetrain.cli.options import AsJson, setting_type
from sparsetrain.cli.output import emit, note
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
    own = _OwnTables(tables, from_data, from_run, schema)
    own.check(bool(full or sweep), formula)
    begin = time.monotonic()
    with StopSignals():
        if own:
            planned = st.compare.with_storage(own.read(base, batch_size, formula is not None))
        else:
            planned = st.compare.Tables(st.compare.plan(base, sweep, formula, full=full), {})
        items = [item for item in _select_arms(planned.items, arm) if item.arms]
        report = st.compare.run(
            items,
            ids=planned.ids,
            progress=_Progress(items),
            on_case=lambda report: report.write(out),
        )
        files = [report.write(out), *_draw(report, out)]
    seconds = time.monotonic() - begin
    result = {**report.to_dict(), "seconds": seconds, "files": files}
    summary = f"{format_count(len(files), 'file')} in {out}, after {format_seconds(seconds)}"
    emit(result, f"{describe(report)}\n{summary}", as_json)


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


class _Progress:
    """Notes each case on stderr, with its number."""

    def __init__(self, items: list[st.compare.Item]) -> None:
        self.total, self.done = len(list(groupby(item.case for item in items))), 0

    def __call__(self, case: str) -> None:
        self.done += 1
        note(f"{self.done} of {self.total}: {case}")


def _draw(report: st.compare.Report, out: Path) -> list[Path]:
    import sparsetrain as st

    try:
        return st.compare.draw(report, out)
    except ConfigError as error:  # results are worth having without plots
        note(f"no plots: {error}")
        return []


class _OwnTables(NamedTuple):
    """The options `--tables`, `--from-data`, `--from-run` and `--schema`, each None if absent."""

    rows: str | None
    data: Path | None
    run: Path | None
    schema: str | None

    def __bool__(self) -> bool:
        return any((self.rows, self.data, self.run))

    def check(self, swept: bool, formulas: Sequence[str] | None) -> None:
        """Raise `ConfigError` for options that contradict each other."""
        if self and swept:
            raise ConfigError("your own tables are not a sweep: leave out --sweep and --full")
        if self and formulas and len(formulas) > 1:
            raise ConfigError("--formula: name one formula for your own tables")
        others = self.run is not None or self.rows is not None
        if self.schema is not None and (self.data is None or others):
            raise ConfigError("--schema names the columns of --from-data, and needs that option")

    def read(
        self, base: st.compare.Case, batch_size: int, formula_named: bool
    ) -> st.compare.Tables:
        """Return a case for each table; raises `SparsetrainError` for unreadable data or runs."""
        import sparsetrain as st

        if self.rows is not None:
            return st.compare.Tables(st.compare.tables_of_rows(_parse_rows(self.rows), base), {})
        if self.run is not None:
            return st.compare.tables_of_run(
                self.run, base, batch_size, data=self.data, formula=formula_named
            )
        data = str(self.data)
        encoder = self.schema and st.data.Encoder.fit(data, schema_file=self.schema)
        return st.compare.tables_of_data(data, base, batch_size, encoder=encoder or None)


def _parse_rows(text: str) -> dict[str, int]:
    """Return names and rows of tables from row counts with commas between them."""
    try:
        return {f"T{n}": int(part) for n, part in enumerate(text.split(","), start=1)}
    except ValueError:
        raise ConfigError(
            f"--tables {text}: expected the rows of each table, such as 1000,50000"
        ) from None
