# SPDX-License-Identifier: Apache-2.0
"""Fitting and extending of category columns: counted values, or the largest id.

One pass over the category columns; labels and dense columns are not read, except that the first
piece of already encoded data is checked for implausible dense values. Extending gives new values
rows after the existing ones, so no known value changes its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice, product
from typing import Any

import numpy as np

from sparsetrain.data.columns.bags import read_values
from sparsetrain.data.columns.category import Category, with_values
from sparsetrain.data.columns.counts import (
    ValueCounts,
    count_values,
)
from sparsetrain.data.columns.dense import Number
from sparsetrain.data.columns.plain import LIMIT, PlainIds, plain_floats, plain_ids
from sparsetrain.data.columns.settings import Settings
from sparsetrain.data.encode.reader import Reader
from sparsetrain.data.read.source import Part
from sparsetrain.data.schema.columns import AUTO
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import NanRule
from sparsetrain.errors import ConfigError, DataError

Bound = Sequence[tuple[Part, Reader]]
Sizes = Mapping[str, int] | Sequence[int]

_LARGEST_LOG = 50.0  # the logarithm of no 64-bit number comes near


def learn(
    features: Sequence[Category],
    parts: Bound,
    settings: Settings,
    schema: Schema,
    sizes: Sizes | None,
) -> tuple[Category, ...]:
    """Return blank columns with what they learn from the training data."""
    if parts[0][1].is_plain:
        settings.check_encoded()
        if schema.linear:
            name = next(iter(schema.linear))
            raise ConfigError(
                f"linear.{name} is for raw data, this is already encoded; leave it out or use "
                "treat_as='raw'"
            )
        if sizes is not None:
            return with_values(features, check_sizes(features, sizes))
        return with_values(features, learn_sizes(features, parts, settings))
    if sizes is not None:
        raise ConfigError(
            "sizes is for already encoded data, this is raw; leave it out or use treat_as='encoded'"
        )
    counts = count_columns(features, parts, settings.nan_rule)
    tables = (column for column in features if column.has_table)
    is_criteo = schema.categories is None
    return with_values(
        features, {c.name: c.learnt(counts[c.name].total, settings, is_criteo) for c in tables}
    )


def count_columns(
    features: Sequence[Category], parts: Bound, nan: NanRule
) -> dict[str, ValueCounts]:
    """Count the values of every table, by the column that it is named after."""
    counts = {column.owner: ValueCounts() for column in features}
    rows = 0
    for part, reader in parts:
        names = [name for name, _, _ in reader.categories]
        for location, piece in part.pieces(names, names):
            rows += piece.num_rows
            for column, name in zip(features, names, strict=True):
                here = location.of_column(name)
                count_column(counts[column.owner], piece.column(name), nan, here)
    if not rows:  # of text that shows only now
        raise DataError(f"{parts[0][0].location.name}: no rows")
    return counts


def count_column(counts: ValueCounts, array: Any, nan: NanRule, location: Location) -> None:
    """Count the values of a category column, of lists or not."""
    read_values(array, lambda values, here: counts.add(count_values(values, nan, here)), location)


def learn_sizes(
    features: Sequence[Category], parts: Bound, settings: Settings
) -> dict[str, PlainIds]:
    """Take the largest id of each table's columns plus one as its rows."""
    check_dense(*parts[0], settings)
    largest = [0] * len(features)
    for part, reader in parts:
        names = [name for name, _, _ in reader.categories]
        for location, piece in part.pieces(names):
            for index, name in enumerate(names):
                ids, _ = read_values(piece.column(name), plain_ids, location.of_column(name))
                largest[index] = max(largest[index], int(ids.max(initial=0)))
    return sizes_of(features, largest)


def sizes_of(features: Sequence[Category], largest: Sequence[int]) -> dict[str, PlainIds]:
    """Return the tables of columns with these largest ids."""
    most = dict.fromkeys((column.owner for column in features), 0)
    for column, id_ in zip(features, largest, strict=True):
        most[column.owner] = max(most[column.owner], id_)
    return {owner: PlainIds(id_ + 1) for owner, id_ in most.items()}


def check_sizes(features: Sequence[Category], sizes: Sizes) -> dict[str, PlainIds]:
    """Return the tables whose rows the user states, by column name or in the columns' order."""
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


def check_dense(part: Part, reader: Reader, settings: Settings) -> None:
    """Refuse to guess when "already encoded" floats are whole numbers too large for logarithms."""
    names = reader.found.dense
    if settings.treat_as != AUTO or not names:
        return
    first = next(part.pieces(names), None)
    if first is None:
        return
    location, piece = first
    dense = np.array([plain_floats(piece.column(n), location.of_column(n)) for n in names])
    top = dense.max()
    if top > _LARGEST_LOG and (dense == np.trunc(dense)).all():
        raise location.error(
            f"the dense columns are floats but hold whole numbers up to {top:.0f}; "
            "use treat_as='raw' if they are counts, treat_as='encoded' if the model takes them so"
        )


def warn_of_floor(part: Part, reader: Reader) -> None:
    """Warn of dense columns many of whose numbers, in the first piece, become equal.

    Nothing is read of a stream, which can be read only once. Bad rows and values are no reason
    to warn: whoever reads them next refuses them or leaves them out.
    """
    logarithms = [(n, c) for n, c in reader.dense if isinstance(c, Number) and c.linear is None]
    if not logarithms or part.is_stream:
        return
    pieces = []
    with suppress(DataError):
        names = [name for name, _ in logarithms]
        pieces = [*islice(part.pieces(names, reader.found.categories), 1)]
    for (name, column), (location, piece) in product(logarithms, pieces):
        with suppress(DataError):
            column.warn_of_floor(piece.column(name), location.of_column(name))


def extend(features: Sequence[Category], parts: Bound, settings: Settings) -> tuple[Category, ...]:
    """Return columns that also give rows to the values of `parts`."""
    tables = [column for column in features if column.has_table]
    if parts[0][1].is_plain:
        found = learn_sizes(features, parts, settings)
        rows = {c.name: PlainIds(max(c.rows, found[c.name].rows)) for c in tables}
        return with_values(features, rows)
    counts = count_columns(features, parts, settings.nan_rule)
    return with_values(features, {c.name: c.grown(counts[c.name].total, settings) for c in tables})
