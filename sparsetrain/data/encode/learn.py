# SPDX-License-Identifier: Apache-2.0
"""Fitting and extending of category rules: counted values, or the largest id.

One pass over the category columns; labels and dense columns are not read, except that the first
piece of already encoded data is checked for implausible dense values. Extending gives new values
rows after the existing ones, so no known value changes its row.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice, product
from typing import Any

import numpy as np

from sparsetrain.data.encode.bags import read_values
from sparsetrain.data.encode.dense import FLOOR, EncodedDense
from sparsetrain.data.encode.rules import (
    LIMIT,
    CategoryRule,
    CategoryRules,
    PlainIds,
    Settings,
    plain_ids,
)
from sparsetrain.data.encode.value_counts import ValueCounts
from sparsetrain.data.encode.vocabulary import Vocabulary
from sparsetrain.data.read.source import Part
from sparsetrain.data.schema.columns import AUTO, Columns
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.shared_tables import owners_of
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import NanRule, read_numbers
from sparsetrain.errors import ConfigError, DataError, DataWarning

Bound = Sequence[tuple[Part, Columns]]
Sizes = Mapping[str, int] | Sequence[int]

_EQUAL = 0.01  # share of a column's numbers that is worth a warning; Criteo's I2 has fewer
_LARGEST_LOG = 50.0  # the logarithm of no 64-bit number comes near


def learn_rules(
    parts: Bound, settings: Settings, schema: Schema, sizes: Sizes | None
) -> CategoryRules:
    """Learn the rule of each category column."""
    columns, share = parts[0][1], schema.share_embedding
    if columns.encoded:
        settings.check_encoded()
        if schema.linear:
            name = next(iter(schema.linear))
            raise ConfigError(
                f"linear.{name} is for raw data, this is already encoded; leave it out or use "
                "treat_as='raw'"
            )
        if sizes is None:
            return learn_sizes(parts, settings, owners_of(columns.categories, share))
        return check_sizes(columns.categories, sizes, share)
    if sizes is not None:
        raise ConfigError(
            "sizes is for already encoded data, this is raw; leave it out or use treat_as='encoded'"
        )
    names, owners = columns.categories, owners_of(columns.categories, share)
    learnt = {
        owner: make_vocabulary(names[owner], count, settings, schema)
        for owner, count in count_columns(parts, settings.nan_rule, owners).items()
    }
    return tuple(learnt[owner] for owner in owners)


def count_columns(parts: Bound, nan: NanRule, owners: Sequence[int]) -> dict[int, ValueCounts]:
    """Count the values of every category column; those of one table are counted together.

    `owners` are as in `Rules`; the result has the counts of each that has a table.
    """
    counts = {owner: ValueCounts() for owner in owners}
    rows = 0
    for part, columns in parts:
        for location, piece in part.pieces(columns.categories, columns.categories):
            rows += piece.num_rows
            for owner, name in zip(owners, columns.categories, strict=True):
                count_column(counts[owner], piece.column(name), nan, location.of_column(name))
    if not rows:  # of text that shows only now
        raise DataError(f"{parts[0][0].location.name}: no rows")
    return counts


def count_column(counts: ValueCounts, array: Any, nan: NanRule, location: Location) -> None:
    """Count the values of a category column, of lists or not."""
    read_values(array, lambda values, here: counts.add(values, nan, here), location)


def make_vocabulary(
    name: str, counts: ValueCounts, settings: Settings, schema: Schema
) -> Vocabulary:
    """Give ids to the values of one column, by its own rule where it has one."""
    wraps = schema.categories is None  # Criteo's own names, of 32-bit hashes
    limits = settings.limits(schema.rule(name))
    return Vocabulary.from_counts(counts, *limits, settings.nan_rule, wraps)


def learn_sizes(parts: Bound, settings: Settings, owners: Sequence[int]) -> tuple[PlainIds, ...]:
    """Take the largest id of each table's columns plus one as its rows."""
    check_dense(*parts[0], settings)
    largest = [0] * len(owners)
    for part, columns in parts:
        for location, piece in part.pieces(columns.categories):
            for index, name in enumerate(columns.categories):
                ids, _ = read_values(piece.column(name), plain_ids, location.of_column(name))
                largest[index] = max(largest[index], int(ids.max(initial=0)))
    return plain_rules(largest, owners)


def plain_rules(largest: Sequence[int], owners: Sequence[int]) -> tuple[PlainIds, ...]:
    """Return the rules of columns with these largest ids; columns of one table have one."""
    most = dict.fromkeys(owners, 0)
    for owner, id_ in zip(owners, largest, strict=True):
        most[owner] = max(most[owner], id_)
    return tuple(PlainIds(most[owner] + 1) for owner in owners)


def check_sizes(
    names: Sequence[str], sizes: Sizes, share: Mapping[str, str]
) -> tuple[PlainIds, ...]:
    """Return the rows the user states, by column name or in the columns' order."""
    if isinstance(sizes, Mapping):
        lacking = [name for name in names if name not in sizes]
        if lacking:
            raise ConfigError(f"sizes lacks {lacking[0]}; give the rows of every category column")
        sizes = [sizes[name] for name in names]
    if len(sizes) != len(names):
        raise ConfigError(f"sizes has {len(sizes)} entries for {len(names)} category columns")
    for name, rows in zip(names, sizes, strict=True):
        if not 1 <= rows <= LIMIT:
            raise ConfigError(f"sizes: {name} has {rows} rows; it must be 1..{LIMIT}")
        owner = share.get(name, name)
        its = sizes[names.index(owner)]
        if rows != its:
            raise ConfigError(
                f"sizes: {name} has {rows} rows and {owner} {its}, but they share a table; give "
                "both the same"
            )
    return tuple(PlainIds(int(rows)) for rows in sizes)


def check_dense(part: Part, columns: Columns, settings: Settings) -> None:
    """Refuse to guess when "already encoded" floats are whole numbers too large for logarithms."""
    if settings.treat_as != AUTO or not columns.dense:
        return
    first = next(part.pieces(columns.dense), None)
    if first is None:
        return
    location, piece = first
    dense = EncodedDense().matrix(
        [piece.column(name) for name in columns.dense], columns.dense, location, piece.num_rows
    )
    top = dense.max()
    if top > _LARGEST_LOG and (dense == np.trunc(dense)).all():
        raise location.error(
            f"the dense columns are floats but hold whole numbers up to {top:.0f}; "
            "use treat_as='raw' if they are counts, treat_as='encoded' if the model takes them so"
        )


def warn_of_floor(part: Part, columns: Columns, settings: Settings, schema: Schema) -> None:
    """Warn of dense columns many of whose numbers, in the first piece, become equal.

    Nothing is read of a stream, which can be read only once. Bad rows and values are no reason
    to warn: whoever reads them next refuses them or leaves them out.
    """
    names = [name for name in columns.dense if name not in schema.linear]
    if columns.encoded or not names or part.is_stream:
        return
    pieces = []
    with suppress(DataError):
        pieces = [*islice(part.pieces(names, columns.categories), 1)]
    for name, (location, piece) in product(names, pieces):
        try:
            values, missing = read_numbers(
                piece.column(name), settings.nan_rule, location.of_column(name)
            )
        except DataError:
            continue
        there = values[~missing]
        share = np.mean(there < FLOOR) if len(there) else 0.0
        if share > _EQUAL:
            warnings.warn(
                f"{part.location.name}: column {name}: {share:.0%} of the numbers are below "
                f"{FLOOR:g}, and become equal in log(max(x, {FLOOR:g}) + 3); shift and scale them "
                f"by a schema: [linear.{name}] center = {there.mean():.4g}, "
                f"scale = {there.std():.4g}",
                DataWarning,
                stacklevel=4,
            )


def extended_rules(
    known: Sequence[CategoryRule],
    parts: Bound,
    settings: Settings,
    schema: Schema,
    names: Sequence[str],
) -> CategoryRules:
    """Return rules that also give rows to the values of `parts`; `names` are the columns."""
    owners = owners_of(names, schema.share_embedding)
    if parts[0][1].encoded:
        pairs = zip(known, learn_sizes(parts, settings, owners), strict=True)
        return tuple(PlainIds(max(old.rows, new.rows)) for old, new in pairs)
    grown: dict[int, Vocabulary] = {}
    for owner, counts in count_columns(parts, settings.nan_rule, owners).items():
        old = known[owner]
        assert isinstance(old, Vocabulary)
        grown[owner] = old.extended(counts, *settings.limits(schema.rule(names[owner])))
    return tuple(grown[owner] for owner in owners)


def keeps_rows(known: CategoryRule, grown: CategoryRule) -> bool:
    """Return whether every value that has a row in `known` has the same one in `grown`."""
    if grown.rows < known.rows or type(known) is not type(grown):
        return False
    if isinstance(known, PlainIds) or isinstance(grown, PlainIds):
        return True
    same_numbers = np.array_equal(grown.find_numbers(known.numbers), known.number_ids)
    return same_numbers and np.array_equal(grown.find_texts(known.texts), known.text_ids)
