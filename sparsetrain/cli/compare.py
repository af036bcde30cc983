# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain compare`: what updates of a table cost here, measured and drawn."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsetrain.cli.compare_own import Own
from sparsetrain.cli.compare_table import describe
from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit, note
from sparsetrain.cli.preflight import require_writable
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.train_options import Schema
from sparsetrain.errors import ConfigError
from sparsetrain.training.progress import format_count, format_seconds

if TYPE_CHECKING:
    import sparsetrain as st


def compare(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Table and pictures; of equal names replaced.")
    ] = Path("compare"),
    full: Annotated[
        bool, typer.Option("--full", help="All axes to their ends, on all arms: long.")
    ] = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS", help="rows, lookups, width, skew, pooling or threads."),
    ] = None,
    formula: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="sgd, momentum, adagrad, adam, ...")
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="stock, dense, sparse or exact alone.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows of the table, where they are not swept.")] = (
        1_000_000
    ),
    lookups: Annotated[int, typer.Option(help="Ids of a step; with bags, bags.")] = 2048,
    width: Annotated[int, typer.Option(help="Width of a row.")] = 16,
    skew: Annotated[str, typer.Option(help="uniform, zipf1.05 or the like, same.")] = "uniform",
    pooling: Annotated[int, typer.Option(help="Ids of a bag.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of kernels; 0 for all cores.")] = 0,
    from_data: Annotated[
        Path | None,
        typer.Option("--from-data", metavar="FILE", help="Your tables and ids, from click logs."),
    ] = None,
    schema: Schema = None,
    from_run: Annotated[
        Path | None,
        typer.Option("--from-run", metavar="RUN", help="The tables and the data of a run."),
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option(metavar="ROWS,...", help="Tables of so many rows, as a model has them."),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="Rows of your data in a step.")
    ] = 2048,
    peer_python: Annotated[
        str | None,
        typer.Option("--peer-python", metavar="PYTHON", help="An interpreter with PyTorch."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what sparse and dense updates cost here.

    Tells where the one becomes cheaper than the other.
    """
    import sparsetrain as st

    require_writable(out)
    base = st.compare.Case(
        rows, lookups * pooling, width, pooling, skew, (formula or ["sgd"])[0], threads
    )
    own = Own(tables, from_data, from_run, schema)
    own.check(bool(full or sweep), formula)
    began = time.monotonic()
    with StopSignals():
        if own:
            known = own.measured_as(base, batch_size, formula is not None)
        else:
            known = st.compare.Tables(st.compare.plan(base, sweep, formula, full=full), {})
        report = _measured(known, arm, peer_python, out)
        files = [*report.write(out), *_draw(report, out)]
    seconds = time.monotonic() - began
    result = {**report.to_dict(), "seconds": seconds, "files": files}
    told = f"{format_count(len(files), 'file')} in {out}, after {format_seconds(seconds)}"
    emit(result, f"{describe(report)}\n{told}", as_json)


def _measured(
    known: st.compare.Tables, arms: list[str] | None, python: str | None, out: Path
) -> st.compare.Report:
    """Measure on the arms that were asked for and on those of peers; keep what there is."""
    import sparsetrain as st

    peers = {} if python is None else st.compare.open_peers(python, warn=note)
    try:
        wanted = (item._replace(arms=_arms_of(item, arms, peers)) for item in known.items)
        items = [item for item in wanted if item.arms]
        all_arms = {**st.compare.ARMS, **{name: peer.arm for name, peer in peers.items()}}
        return st.compare.run(
            items,
            ids=known.ids,
            arms=all_arms,
            say=_Counted(items),
            keep=lambda report: report.write(out),
        )
    finally:
        for peer in peers.values():
            peer.close()  # one process, so the first ends it


def _arms_of(
    item: st.compare.Item, wanted: list[str] | None, peers: Iterable[str]
) -> tuple[str, ...]:
    """Those asked for; a whole storage has its own ones, or the dear ones would take minutes."""
    if item.sweep == "storage":
        return tuple(arm for arm in item.arms if wanted is None or arm in wanted)
    return (*(wanted or item.arms), *peers)


class _Counted:
    """Tells on stderr how far a run is."""

    def __init__(self, items: list[st.compare.Item]) -> None:
        self.total, self.done = len(list(groupby(item.case for item in items))), 0

    def __call__(self, case: str) -> None:
        self.done += 1
        note(f"{self.done} of {self.total}: {case}")


def _draw(report: st.compare.Report, out: Path) -> list[Path]:
    import sparsetrain as st

    try:
        return st.compare.draw(report, out)
    except ConfigError as error:  # the figures are worth having without pictures
        note(f"no pictures: {error}")
        return []
