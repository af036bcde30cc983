# SPDX-License-Identifier: Apache-2.0
"""Cases of a comparison: a sweep over the rows of a table, and the user's own tables.

The user's are one for each categorical column of a file, or row count, and all of them in one
array, as a model keeps and updates them. Bags are measured as single lookups, as many as the
smallest batch has ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparsetrain.compare.case import MOST_ROWS, Case
from sparsetrain.compare.measure import LEAST_STEPS, WARM, Ids
from sparsetrain.data import Batch, Dataset, Encoder
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.training.load import load
from sparsetrain.training.run import Run

_SWEPT = tuple(factor * 10**n for n in range(3, 7) for factor in (1, 3)) + (10**7,)
_STEPS = 67  # batches that are read: their rows do not fit into the caches
_TOGETHER = "all together"  # label of the one array


def sweep(base: Case, formulas: Sequence[str] = ("sgd", "adagrad")) -> list[Case]:
    """Return cases of tables from a thousand to ten million rows, for each formula.

    Parameters
    ----------
    base : Case
        Ids and width of all.
    formulas : sequence of str
        Names in `sparsetrain.optim.OPTIMIZERS`.
    """
    return [replace(base, rows=n, formula=formula) for formula in formulas for n in _SWEPT]


class Tables(NamedTuple):
    """Cases for `run`, and the ids of each by its label."""

    cases: list[Case]
    ids: dict[str, Ids]


def tables_of_rows(rows: Mapping[str, int], base: Case) -> Tables:
    """Return a case for each table of a model, with random ids.

    Parameters
    ----------
    rows : mapping of str to int
        Rows of each table, by its name.
    base : Case
        The other fields of all cases.
    """
    cases = [replace(base, rows=count, label=name) for name, count in rows.items()]
    return _with_all_together(cases, {c.label: [*c.draw_ids(WARM + _STEPS)] for c in cases})


def tables_of_data(
    source: str | Path, base: Case, batch_size: int = 2048, *, encoder: Encoder | None = None
) -> Tables:
    """Return a case for each table that a model on this data would have.

    Parameters
    ----------
    source : path
        Click logs, as `Encoder.fit` takes them.
    base : Case
        Width and formula of all tables.
    batch_size : int
        Rows of data in a step.
    encoder : Encoder, optional
        That of a trained model; by default one is fitted.

    Raises
    ------
    DataError
        If the data cannot be read, or has too few batches.
    """
    encoder = encoder or Encoder.fit(str(source))
    dataset = Dataset(str(source), encoder, require_label=False)
    batches = list(islice(dataset.batches(batch_size, drop_last=True), WARM + _STEPS))
    if len(batches) < WARM + LEAST_STEPS:
        raise DataError(
            f"{source}: {len(batches)} batches of {batch_size:,} rows; a comparison needs "
            f"{WARM + LEAST_STEPS} different ones: pass more rows or a smaller batch size"
        )
    ids = {str(name): _looked_up(batches, encoder, name) for name in encoder.tables}
    cases = [
        replace(base, rows=rows, lookups=len(ids[name][0]), skew="", label=name)
        for name, rows in encoder.tables.items()
    ]
    return _with_all_together(cases, ids)


def tables_of_run(
    run: str | Path,
    base: Case,
    batch_size: int = 2048,
    *,
    data: str | Path | None = None,
    formula: bool = False,
) -> Tables:
    """Return a case for each table of a trained model, with its width and formula.

    Parameters
    ----------
    run : path
        Folder that `sparsetrain train --out` wrote.
    base : Case
        The other fields of all cases.
    batch_size : int
        Rows of data in a step.
    data : path, optional
        Source of the ids; by default the files that the run was trained on.
    formula : bool
        Use the formula of `base`, not the run's.

    Raises
    ------
    CheckpointError
        If the run cannot be read.
    ConfigError
        If the run does not name its training files, or has no encoder.
    DataError
        As `tables_of_data`.
    """
    trainer = load(run)
    if trainer.encoder is None:
        raise ConfigError(f"{run} has no encoder; use tables_of_data on its data")
    name = base.formula if formula else trainer.optimizer.formula.name
    case = replace(base, width=int(trainer.model.config()["dim"]), formula=name)
    source = data or _trained_on(Path(run))
    return tables_of_data(source, case, batch_size, encoder=trainer.encoder)


def _trained_on(run: Path) -> str:
    """Return the first file that a run was trained on."""
    extra = Run(run).manifest().get("extra")
    files = extra.get("files", {}).get("train") if isinstance(extra, dict) else None
    if not files:
        raise ConfigError(f"{run} does not name its training files; pass rows with --from-data")
    return str(files[0])


def _with_all_together(cases: list[Case], ids: dict[str, Ids]) -> Tables:
    """Add a case for all tables in one array, unless there is one, or ids cannot address it."""
    *firsts, rows = np.cumsum([0, *(case.rows for case in cases)]).tolist()
    if len(cases) < 2 or rows > MOST_ROWS:
        return Tables(cases, ids)
    steps = [
        np.concatenate([some + np.int32(first) for some, first in zip(step, firsts, strict=True)])
        for step in zip(*(ids[case.label] for case in cases), strict=True)
    ]
    label = _TOGETHER
    while label in ids:
        label = f"({label})"
    both = replace(cases[0], rows=rows, lookups=len(steps[0]), skew="", label=label)
    return Tables([*cases, both], {**ids, label: steps})


def _looked_up(batches: Sequence[Batch], encoder: Encoder, table: str) -> Ids:
    """Return the ids of a table in each batch, from all columns that share it."""
    owner = encoder.columns.index(table)
    columns = [_column(batches, f) for f, whose in enumerate(encoder.owners) if whose == owner]
    return [np.concatenate(step) for step in zip(*columns, strict=True)]


def _column(batches: Sequence[Batch], feature: int) -> Ids:
    """Return the ids of one feature in each batch, resized to one length."""
    flat = [_ids(batch, feature) for batch in batches]
    length = max(1, min(map(len, flat)))
    return [np.resize(ids, length).astype(np.int32) for ids in flat]


def _ids(batch: Batch, feature: int) -> np.ndarray:
    ids: Any = batch.ids
    return ids[feature].ids if isinstance(ids, tuple) else ids[:, feature]
