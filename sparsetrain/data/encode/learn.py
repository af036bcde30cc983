# SPDX-License-Identifier: Apache-2.0
"""What an encoder learns from the training data: values and their counts, or the largest id.

One pass over the category columns; labels and dense columns are not read, except that the first
piece of already encoded data is looked at for dense values that cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsetrain.data.encode.bags import read_values
from sparsetrain.data.encode.counts import Counted, ValueCounts
from sparsetrain.data.encode.dense import EncodedDense
from sparsetrain.data.encode.plain_ids import LIMIT, PlainIds, plain_ids
from sparsetrain.data.encode.rules import CategoryRules
from sparsetrain.data.encode.settings import Settings
from sparsetrain.data.encode.vocabulary import Vocabulary
from sparsetrain.data.read.source import Part
from sparsetrain.data.schema.columns import AUTO, Columns
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.shared_tables import owners_of
from sparsetrain.data.values.missing import NanRule
from sparsetrain.data.values.place import Place
from sparsetrain.errors import ConfigError, DataError

Bound = Sequence[tuple[Part, Columns]]
Sizes = Mapping[str, int] | Sequence[int]

_LARGEST_LOG = 50.0  # the logarithm of no 64-bit number comes near


def learn_rules(
    parts: Bound, settings: Settings, schema: Schema, sizes: Sizes | None
) -> CategoryRules:
    """What becomes of the values of each category column.

    Raises
    ------
    ConfigError
        If `sizes` or something of the schema does not go with the data.
    DataError
        If the data cannot be read.
    """
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
        return given_sizes(columns.categories, sizes, share)
    if sizes is not None:
        raise ConfigError(
            "sizes is for already encoded data, this is raw; leave it out or use treat_as='encoded'"
        )
    return learn_vocabularies(parts, settings, schema)


def learn_vocabularies(parts: Bound, settings: Settings, schema: Schema) -> tuple[Vocabulary, ...]:
    """Count the values of every category column and give the frequent ones their ids."""
    names = parts[0][1].categories
    owners = owners_of(names, schema.share_embedding)
    learnt = {
        owner: vocabulary_of(names[owner], count, settings, schema)
        for owner, count in count_columns(parts, settings.nan_rule, owners).items()
    }
    return tuple(learnt[owner] for owner in owners)


def count_columns(parts: Bound, nan: NanRule, owners: Sequence[int]) -> dict[int, ValueCounts]:
    """Count the values of every category column; those of one table are counted together.

    `owners` are as of `Rules`; the result has the counts of each that has a table.

    Raises
    ------
    DataError
        If there are no rows, or a value cannot be a category.
    """
    counts = {owner: ValueCounts() for owner in owners}
    rows = 0
    for part, columns in parts:
        for place, piece in part.pieces(columns.categories):
            rows += piece.num_rows
            for owner, name in zip(owners, columns.categories, strict=True):
                count_column(counts[owner], piece.column(name), nan, place.of(name))
    if not rows:  # of text that shows only now
        raise DataError(f"{parts[0][0].place.name}: no rows")
    return counts


def count_column(counts: ValueCounts, array: Any, nan: NanRule, place: Place) -> None:
    """Count the values of a category column, of lists or not."""
    read_values(array, lambda values, here: counts.add(values, nan, here), place)


def vocabulary_of(name: str, counts: Counted, settings: Settings, schema: Schema) -> Vocabulary:
    """Give ids to the values of one column, by its own rule where it has one."""
    rule = schema.rule(name)
    return Vocabulary.from_counts(
        counts,
        rule.min_count or settings.min_count,
        rule.max_rows or settings.max_rows,
        settings.nan_rule,
    )


def learn_sizes(parts: Bound, settings: Settings, owners: Sequence[int]) -> tuple[PlainIds, ...]:
    """Take the largest id of each table's columns plus one as its rows."""
    check_dense(*parts[0], settings)
    largest = [0] * len(owners)
    for part, columns in parts:
        for place, piece in part.pieces(columns.categories):
            for index, name in enumerate(columns.categories):
                ids, _ = read_values(piece.column(name), plain_ids, place.of(name))
                largest[index] = max(largest[index], int(ids.max(initial=0)))
    return plain_tables(largest, owners)


def plain_tables(largest: Sequence[int], owners: Sequence[int]) -> tuple[PlainIds, ...]:
    """Return the rules of columns with these largest ids; columns of one table have one."""
    most = dict.fromkeys(owners, 0)
    for owner, id_ in zip(owners, largest, strict=True):
        most[owner] = max(most[owner], id_)
    return tuple(PlainIds(most[owner] + 1) for owner in owners)


def given_sizes(
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
    place, piece = first
    dense = EncodedDense().matrix(
        [piece.column(name) for name in columns.dense], columns.dense, place, piece.num_rows
    )
    top = dense.max()
    if top > _LARGEST_LOG and (dense == np.trunc(dense)).all():
        raise place.error(
            f"the dense columns are floats but hold whole numbers up to {top:.0f}; "
            "use treat_as='raw' if they are counts, treat_as='encoded' if the model takes them so"
        )
