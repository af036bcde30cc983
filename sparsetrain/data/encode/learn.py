# SPDX-License-Identifier: Apache-2.0
"""Fitting and extension of encoders: counts of category values, or the largest ids.

Fitting is one pass over the category columns. Labels are not read; dense columns are read only to
learn boundaries, and in the first piece, to check for implausible values. Extending an encoder
gives new values the rows after the existing ones, so no known value changes its row.

Learned options of derived columns, such as boundaries, become ordinary options of the encoder's
schema. They are learned from all numbers, if these are at most `MOST`, else from a sample. A
golden-ratio sequence over the positions selects it, evenly over the rows and out of step with any
period in the data. So the result depends only on the numbers and their order, not on how rows are
split into pieces. Memory: 16 bytes per sampled number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.category import Category, Values, Vocabulary
from sparsetrain.data.columns.counts import ValueCounts
from sparsetrain.data.columns.plain import LIMIT, PlainIds
from sparsetrain.data.encode.encoder_state import ENCODER_FILE, read_file
from sparsetrain.data.encode.reader import Reader, bind
from sparsetrain.data.encode.rules import Own, Rules, Settings, dense_columns
from sparsetrain.data.read.added_columns import (
    check_sources,
    learnt_numbers,
    stored_names,
    with_derived,
)
from sparsetrain.data.read.open_source import open_rows
from sparsetrain.data.read.source import Part
from sparsetrain.data.read.tables import names_in
from sparsetrain.data.schema.columns import find_columns, require_columns
from sparsetrain.data.schema.derived import Derived
from sparsetrain.data.schema.numbers import Numbers, with_buckets
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import is_bag, is_unsigned
from sparsetrain.data.values.location import Location
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.system.argument_checks import require_int

MOST = 1 << 17  # most numbers of a sample; a bucket of 1/32 of the rows is off by 1/60 of its size
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio

Bound = Sequence[tuple[Part, Reader]]
Sizes = Mapping[str, int] | Sequence[int]
PieceNumbers = Mapping[str, Array]  # numbers of a piece, by derived column


def learn_derived(schema: Schema, parts: Sequence[Part]) -> Schema:
    """Return a schema with the options of derived columns learned from the rows of `parts`.

    Raises
    ------
    DataError
        If a number cannot be read, there are no numbers, or rows can be read only once.
    """
    rules = schema.to_learn
    sampling = Sampling(rules)
    for part in parts:
        for name, rule in rules.items():
            check_sources(part, name, rule)
            if part.is_stream:
                raise part.location.error(
                    f"{rule.of.key} are learnt before all else, and these rows can be read only "
                    f"once; give a table or files, or {rule.of.learns} in place of {rule.of.key}"
                )
        for location, piece in part.pieces(stored_names([*rules], rules, part.schema.names)):
            sampling.add(numbers_in(piece, rules, location))
    return sampling.learnt(schema, parts[0].location.name)


def numbers_in(
    piece: pa.RecordBatch, rules: Mapping[str, Derived], location: Location
) -> PieceNumbers:
    """Return the numbers of a piece that each rule learns from."""
    return {name: learnt_numbers(rule, piece, location) for name, rule in rules.items()}


class Sampling:
    """Samples of the numbers that rules learn from, piece by piece in the order of the rows."""

    def __init__(self, rules: Mapping[str, Derived]) -> None:
        self.rules = rules
        self._samples = {name: _Sample() for name in rules}

    @property
    def sources(self) -> list[str]:
        """The columns to read."""
        return list(dict.fromkeys(rule.source for rule in self.rules.values()))

    def add(self, numbers: PieceNumbers) -> None:
        """Add the numbers of a piece, as `numbers_in` returns them."""
        for name, values in numbers.items():
            self._samples[name].add(values)

    def learnt(self, schema: Schema, where: str) -> Schema:
        """Return a schema with rules learned from the samples; `where` is for messages."""
        learnt = dict(schema.derived)
        for name, rule in self.rules.items():
            values = self._samples[name].values()
            if not len(values) and rule.source not in schema.bins:
                raise Location(where, column=rule.source).error(
                    f"no number from which to learn {rule.of.key} of {name}; give "
                    f"{rule.of.learns}, or drop {name}"
                )
            learnt[name] = rule.learn(values)
        return replace(schema, derived=learnt)


class _Sample:
    """Numbers sampled by a hash of their position; if there are too many, the sample is halved."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Array, Array]] = []
        self._seen = self._kept = 0
        self._limit = np.uint64(2**64 - 1)

    def add(self, values: Array) -> None:
        """Sample the next numbers (n,)."""
        places = np.arange(self._seen, self._seen + len(values), dtype=np.uint64) * _GOLDEN
        self._seen += len(values)
        self._take(places, values)
        while self._kept > MOST:
            self._limit >>= np.uint64(1)
            places, values = (np.concatenate(part) for part in zip(*self._pieces, strict=True))
            self._pieces, self._kept = [], 0
            self._take(places, values)

    def _take(self, places: Array, values: Array) -> None:
        below = places <= self._limit
        self._pieces.append((places[below], values[below]))
        self._kept += int(np.count_nonzero(below))

    def values(self) -> Array:
        """Return the sampled numbers."""
        return np.concatenate([np.zeros(0), *(values for _, values in self._pieces)])


def learn(
    source: Any, settings: Settings, schema: Schema, sizes: Sizes | None, numbers: Numbers
) -> Rules:
    """Learn an encoder from training data; return the existing one if they were converted."""
    opened = open_rows(source, schema)
    first = opened.parts[0]
    known = read_converted(first)
    if known is not None:
        settings.check_converted(known.settings)
        schema.check_known(known.schema, "the data are converted", "convert the raw data")
        if numbers in ("quantiles", "logarithms"):
            raise ConfigError(
                f"numbers={numbers!r} is for raw data, but these data are converted: convert the "
                "raw data again with this setting"
            )
    for part in opened.parts if schema.needed else ():
        names = names_in(source) or part.schema.names  # all columns, not only the useful ones
        require_columns(names, schema.needed, "weight", part.location)
    if known is not None:
        bind(known, opened.parts, require_label=False)
        return known
    made = blank_encoder(first, settings, schema, numbers)
    if made.schema.to_learn:
        made = replace(made, schema=learn_derived(made.schema, opened.parts))
    parts = bind(made, opened.parts, require_label=False)
    parts[0][1].warn_of_floor(parts[0][0])
    bins = Sampling(made.schema.bins_to_learn)
    made = made.with_values(_learnt(made, parts, sizes, bins))
    if not bins.rules:
        return made
    return replace(made, schema=bins.learnt(made.schema, first.location.name))


def read_converted(part: Part) -> Rules | None:
    """Return the encoder in the folder of a converted file; None for other data."""
    path = Path(part.location.name).with_name(ENCODER_FILE)
    return Rules(**read_file(path)) if part.is_converted and path.is_file() else None


def encoder_of(part: Part, settings: Settings, schema: Schema) -> Rules:
    """Return the encoder of a converted part; of other data, a blank one."""
    return read_converted(part) or blank_encoder(part, settings, schema)


def blank_encoder(
    stored: Part, settings: Settings, schema: Schema, numbers: Numbers = "scaled"
) -> Rules:
    """Return an encoder that has the columns of a part, but has not learned any values yet."""
    part = with_derived(stored, schema.made) if schema.made else stored
    first = find_columns(
        part.schema,
        part.location.name,
        label=False,
        treat_as=settings.treat_as,
        described=schema,
    )
    for source in schema.bins:
        if source not in first.dense:
            raise Location(part.location.name, column=source).error(
                "a derived column that nothing reads has boundaries of this column, which is not "
                "dense; drop the derived column"
            )
    plain = numbers == "scaled" or (numbers == "best" and first.encoded)
    bucketed = schema if plain else with_buckets(schema, numbers, first.dense, first.categories)
    if bucketed is not schema:
        flags = settings.missing_flags or len(bucketed.bins) > len(schema.bins)
        return blank_encoder(stored, replace(settings, missing_flags=flags), bucketed)
    schema.tables_of(first.categories)  # checked before any data are read
    values = PlainIds() if first.encoded else Vocabulary.blank(settings.nan_rule)
    types = {name: part.schema.field(name).type for name in first.categories}
    features = tuple(
        Category.of(name, schema, values, lists=is_bag(type_), unsigned=is_unsigned(type_))
        for name, type_ in types.items()
    )
    dense = dense_columns(first.dense, first.encoded, settings, schema)
    made = Rules(settings, dense, features, first.layout, schema)
    made.known_readers[False, None] = part.schema, Reader(made, first)
    return made


def _learnt(blank: Rules, parts: Bound, sizes: Sizes | None, bins: Sampling) -> dict[str, Values]:
    """Fit new columns and `bins` to the training data; return the values of each table."""
    if not blank.reserves:
        blank.settings.check_encoded(blank.schema.linear)
    if sizes is not None and blank.reserves:
        raise ConfigError(
            "sizes is for already encoded data, but these data are raw; leave it out or use "
            "treat_as='encoded'"
        )
    if sizes is not None:
        return check_sizes(blank.features, sizes)
    counts = count_columns(blank.features, parts, bins)
    return {column.name: blank.learn(column, n.total) for column, n in counts.items()}


def extended(known: Own, source: Any, *, min_count: int | None = None) -> Own:
    """Return an encoder that also knows the values of newer data.

    Known values keep their rows; new values get the rows after them, the most frequent first.
    `Trainer.extended` then extends the tables. With already encoded data, a table gets rows up
    to the largest id.

    Parameters
    ----------
    source : anything `open_source` takes, except batches and converted files
    min_count : int, optional
        Number of occurrences in `source` from which a new value gets a row; by default the
        value of the last fit or extension. A column's rule in the schema takes precedence.
        Values beyond `max_rows` are treated as rare.

    Raises
    ------
    DataError
        If the data cannot be read, or were written by `convert`.
    ConfigError
        If `min_count` is not a whole number of 1 or more.
    """
    if min_count is not None:
        least = require_int("min_count", min_count)
        known = replace(known, settings=replace(known.settings, min_count=least))
    opened = open_rows(source, known.schema)
    for part in opened.parts:
        if part.is_converted:
            raise DataError(
                f"{part.location.name}: the data are converted, which removed all values new to "
                "their encoder; give the raw data"
            )
    bound = bind(known, opened.parts, require_label=False)
    counts = count_columns(known.features, bound, Sampling({}))
    return known.with_values(
        {c.name: c.grown(n.total, known.settings.limits(c.rule)) for c, n in counts.items()}
    )


def count_columns(
    features: Sequence[Category], parts: Bound, bins: Sampling
) -> dict[Category, ValueCounts]:
    """Count the values of every table, by its owner, and sample the numbers for `bins`."""
    parts[0][1].check_dense(parts[0][0])
    counts = {column.owner: ValueCounts() for column in features}
    rows = 0
    for part, reader in parts:
        names = [name for name, _, _ in reader.categories]
        for location, piece in part.pieces([*names, *bins.sources], names):
            rows += piece.num_rows
            bins.add(numbers_in(piece, bins.rules, location))
            for column, name in zip(features, names, strict=True):
                found = column.count(piece.column(name), None, location.of_column(name))
                counts[column.owner].add(found)
    if not rows:  # text and streams turn out to be empty only here
        raise DataError(f"{parts[0][0].location.name}: no rows")
    return {column: counts[column.name] for column in features if column.has_table}


def check_sizes(features: Sequence[Category], sizes: Sizes) -> dict[str, Values]:
    """Return the ids of each column, with the table rows that the user gave by name or in order."""
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
