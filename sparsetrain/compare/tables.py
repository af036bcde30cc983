# SPDX-License-Identifier: Apache-2.0
"""Cases of a comparison: a sweep over the rows of a table, and the user's own tables.

The user's tables are given by the categorical columns of a file or by row counts. Each table is a
case, and all tables together in one array, as in a model, are one more. Bags are measured as single
lookups, in each step as many as the batch with the fewest ids has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sparsetrain.compare.case import MOST_ROWS, Case
from sparsetrain.compare.measuring import LEAST_STEPS, WARM, Ids
from sparsetrain.data import Batch, Dataset, Encoder
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.training.load import load
from sparsetrain.training.run import Run

_SWEPT = tuple(factor * 10**n for n in range(3, 7) for factor in (1, 3)) + (10**7,)
_STEPS = 67  # batches to read, so that their rows do not fit into the caches
Planned = list[tuple[Case, Ids | None]]  # cases with their ids; None: ids are drawn


def sweep(base: Case, formulas: Sequence[str] = ("sgd", "adagrad")) -> Planned:
    """Return cases like `base` with a thousand to ten million rows, for each formula."""
    return [(replace(base, rows=n, formula=f), None) for f in formulas for n in _SWEPT]


def tables_of_rows(rows: Mapping[str, int], base: Case) -> Planned:
    """Return a case with random ids for each table, given the tables' row counts by name."""
    cases = [replace(base, rows=count, label=name) for name, count in rows.items()]
    return _with_all_together([(case, [*case.draw_ids(WARM + _STEPS)]) for case in cases])


def tables_of_data(
    source: str, base: Case, batch_size: int = 2048, *, encoder: Encoder | None = None
) -> Planned:
    """Return a case with ids for each table of a model on click logs.

    `base` sets the width and formula; `encoder` comes from a trained model, or is fitted here.

    Raises
    ------
    DataError
        If the data cannot be read, or has too few batches.
    """
    encoder = encoder or Encoder.fit(source)
    dataset = Dataset(source, encoder, require_label=False)
    batches = list(islice(dataset.batches(batch_size, drop_last=True), WARM + _STEPS))
    if len(batches) < WARM + LEAST_STEPS:
        raise DataError(
            f"{source}: {len(batches)} batches of {batch_size:,} rows, but a comparison needs "
            f"{WARM + LEAST_STEPS}: pass more rows or a smaller batch size"
        )
    tables = {str(name): _looked_up(batches, encoder, name) for name in encoder.tables}
    own = [
        (replace(base, rows=rows, lookups=len(ids[0]), skew="", label=name), ids)
        for (name, ids), rows in zip(tables.items(), encoder.tables.values(), strict=True)
    ]
    return _with_all_together(own)


def tables_of_run(
    run: str | Path, base: Case, batch_size: int = 2048, *, data: str | None, formula: bool
) -> Planned:
    """Return a case for each table of a trained model, with its width and formula.

    The ids come from `data`, by default the training files of the run. With `formula`, the formula
    is `base`'s instead of the run's.

    Raises
    ------
    CheckpointError
        If the run cannot be read.
    ConfigError
        If the run does not name its training files, or has no encoder.
    DataError
        As in `tables_of_data`.
    """
    trainer = load(run)
    if trainer.encoder is None:
        raise ConfigError(f"{run} has no encoder; use tables_of_data on its data")
    if data is None:
        extra = Run(run).manifest().get("extra")
        files = extra.get("files", {}).get("train") if isinstance(extra, dict) else None
        if not files:
            raise ConfigError(f"{run} does not name its training files; pass rows with --from-data")
        data = files[0]
    name = base.formula if formula else trainer.optimizer.formula.name
    width = trainer.model.config()["dim"]
    if not isinstance(width, int):
        raise ConfigError(f"{run} has tables of several widths; use tables_of_data on its data")
    case = replace(base, width=width, formula=name)
    return tables_of_data(data, case, batch_size, encoder=trainer.encoder)


def _with_all_together(own: Sequence[tuple[Case, Ids]]) -> Planned:
    """Add a case for all tables in one array, if there are several and ids can address it."""
    *firsts, rows = np.cumsum([0, *(case.rows for case, _ in own)]).tolist()
    if len(own) < 2 or rows > MOST_ROWS:
        return [*own]
    steps = [
        np.concatenate([some + np.int32(first) for some, first in zip(step, firsts, strict=True)])
        for step in zip(*(ids for _, ids in own), strict=True)
    ]
    together = replace(own[0][0], rows=rows, lookups=len(steps[0]), skew="", label="all together")
    return [*own, (together, steps)]


def _looked_up(batches: Sequence[Batch], encoder: Encoder, table: str) -> Ids:
    """Return a table's ids in each batch, from all columns that share the table."""
    sharing = (f for f, column in enumerate(encoder.features) if column.owner == table)
    columns = [_column(batches, f) for f in sharing]
    return [np.concatenate(step) for step in zip(*columns, strict=True)]


def _column(batches: Sequence[Batch], feature: int) -> Ids:
    """Return the ids of one feature in each batch, cut to the shortest length (at least 1)."""
    flat = [_ids(batch.ids, feature) for batch in batches]
    length = max(1, min(map(len, flat)))
    return [np.resize(ids, length).astype(np.int32) for ids in flat]


def _ids(ids: Any, feature: int) -> np.ndarray:
    return ids[feature].ids if isinstance(ids, tuple) else ids[:, feature]
