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

import numpy as np

from sparsetrain.data.columns.category import Category, with_values
from sparsetrain.data.columns.counts import ValueCounts
from sparsetrain.data.columns.dense import Number
from sparsetrain.data.columns.plain import LIMIT, PlainIds, plain_floats
from sparsetrain.data.columns.settings import Settings
from sparsetrain.data.encode.reader import Reader
from sparsetrain.data.read.source import Part
from sparsetrain.data.schema.columns import AUTO
from sparsetrain.data.schema.schema import Schema
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
    is_plain = parts[0][1].is_plain
    if is_plain:
        settings.check_encoded()
        if schema.linear:
            name = next(iter(schema.linear))
            raise ConfigError(
                f"linear.{name} is for raw data, this is already encoded; leave it out or use "
                "treat_as='raw'"
            )
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
    check_dense(*parts[0], settings)
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
    if not reader.is_plain or settings.treat_as != AUTO or not names:
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
