# SPDX-License-Identifier: Apache-2.0
"""Fitting and extending of category columns: counted values, or the largest id.

One pass over the category columns; labels and dense columns are not read, except that the first
piece of already encoded data is checked for implausible dense values. Extending gives new values
rows after the existing ones, so no known value changes its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparsetrain.data.columns.category import Category, with_values
from sparsetrain.data.columns.counts import ValueCounts
from sparsetrain.data.columns.plain import LIMIT, PlainIds
from sparsetrain.data.columns.settings import Settings
from sparsetrain.data.encode.reader import Reader
from sparsetrain.data.read.source import Part
from sparsetrain.data.schema.schema import Schema
from sparsetrain.errors import ConfigError, DataError

Bound = Sequence[tuple[Part, Reader]]
Sizes = Mapping[str, int] | Sequence[int]


def learn(
    features: Sequence[Category],
    parts: Bound,
    settings: Settings,
    schema: Schema,
    sizes: Sizes | None,
) -> tuple[Category, ...]:
    """Return blank columns after they have learnt from the training data."""
    is_plain = parts[0][1].is_plain
    if is_plain:
        settings.check_encoded(schema.linear)
    if sizes is not None and not is_plain:
        raise ConfigError(
            "sizes is for already encoded data, this is raw; leave it out or use treat_as='encoded'"
        )
    if sizes is not None:
        return with_values(features, check_sizes(features, sizes))
    counts, is_criteo = count_columns(features, parts, settings), schema.categories is None
    return with_values(
        features, {c.name: c.learnt(n.total, settings, is_criteo) for c, n in counts.items()}
    )


def extend(features: Sequence[Category], parts: Bound, settings: Settings) -> tuple[Category, ...]:
    """Return columns that also give rows to the values of `parts`."""
    counts = count_columns(features, parts, settings)
    return with_values(features, {c.name: c.grown(n.total, settings) for c, n in counts.items()})


def count_columns(
    features: Sequence[Category], parts: Bound, settings: Settings
) -> dict[Category, ValueCounts]:
    """Count the values of every table, by the column that it is named after."""
    parts[0][1].check_dense(parts[0][0])
    counts = {column.owner: ValueCounts() for column in features}
    rows = 0
    for part, reader in parts:
        names = [name for name, _, _ in reader.categories]
        for location, piece in part.pieces(names, names):
            rows += piece.num_rows
            for column, name in zip(features, names, strict=True):
                found = column.count(piece.column(name), location.of_column(name))
                counts[column.owner].add(found)
    if not rows:  # of text that shows only now
        raise DataError(f"{parts[0][0].location.name}: no rows")
    return {column: counts[column.name] for column in features if column.has_table}


def check_sizes(features: Sequence[Category], sizes: Sizes) -> dict[str, PlainIds]:
    """Return tables with rows stated by the user, by column name or in the columns' order."""
    names = [column.name for column in features]
    if isinstance(sizes, Mapping):
        lacking = [name for name in names if name not in sizes]
        if lacking:
            raise ConfigError(f"sizes lacks {lacking[0]}; give the rows of every category column")
        sizes = [sizes[name] for name in names]
    if len(sizes) != len(names):
        raise ConfigError(f"sizes has {len(sizes)} entries for {len(names)} category columns")
    stated = dict(zip(names, sizes, strict=True))
    for column in features:
        name, rows = column.name, stated[column.name]
        if not 1 <= rows <= LIMIT:
            raise ConfigError(f"sizes: {name} has {rows} rows; it must be 1..{LIMIT}")
        its = stated[column.owner]
        if rows != its:
            raise ConfigError(
                f"sizes: {name} has {rows} rows and {column.owner} {its}, but they share a table; "
                "give both the same"
            )
    return {name: PlainIds(int(rows)) for name, rows in stated.items()}
