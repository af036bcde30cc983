# SPDX-License-Identifier: Apache-2.0
"""Columns that an encoder reads, found in raw, encoded or converted data.

Columns match by their position within a naming family: an encoder fitted on `I1..`, `C1..` also
reads `int_0..`, `cat_0..`. Converted files carry the fingerprint of their encoder and hold what it
would make of the raw rows, so a model trained on them scores raw rows too; any other encoder
refuses them. A column of row weights must agree between data, schema and encoder.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from sparsetrain.data.columns.category import found_in
from sparsetrain.data.columns.dense import input_names
from sparsetrain.data.columns.number import FLAG
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.read.converted_files import encoder_fingerprint
from sparsetrain.data.schema.column_names import require_columns
from sparsetrain.data.schema.columns import (
    Columns,
    describe_labels,
    find_columns,
)
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.location import Location
from sparsetrain.errors import ConfigError, DataError

LABEL = "label"
WEIGHTS = "_weights"  # what follows a column's name in that of the weights of its lists


def label_names(schema: Schema) -> tuple[str, ...]:
    """Return the names of the label columns of converted data."""
    return tuple(schema.labels) if len(schema.labels) > 1 else (LABEL,)


def weight_names(rules: Rules) -> tuple[str | None, ...]:
    """Return, for each category column of converted data, the column of its weights."""
    return tuple(f"{c.name}{WEIGHTS}" if c.rule.weights else None for c in rules.features)


def check_converted_names(rules: Rules) -> None:
    """Refuse columns that converted data could not tell apart, by their names."""
    more = (*weight_names(rules), rules.schema.weights, *label_names(rules.schema))
    names = Counter([*input_names(rules.dense), *rules.columns, *(name for name in more if name)])
    for name, count in names.items():
        if count > 1 and name == LABEL:
            raise ConfigError(
                f"{name!r} is a feature here, and what converted data call the label: rename the "
                "column, or train on the raw data"
            )
        if count > 1:
            raise ConfigError(
                f"converted data would have two columns {name!r}: {FLAG} stands for the flags of a "
                f"dense column, {WEIGHTS} for the weights of a list; rename one"
            )


def converted_columns(
    rules: Rules, fingerprint: str, schema: pa.Schema, where: str, require_label: bool
) -> Columns:
    """Return the columns of a converted file."""
    if encoder_fingerprint(schema) != fingerprint:
        raise DataError(
            f"{where}: converted with another encoder than this one; convert the raw data with "
            "this one (convert --encoder), or train on this data"
        )
    labels = label_names(rules.schema) if require_label else ()
    require_columns(schema.names, labels, "label", Location(where))
    dense, weights = input_names(rules.dense), weight_names(rules)
    there = {*schema.names}
    for name in (*dense, *rules.columns, *(name for name in weights if name)):
        if name not in there:
            raise Location(where, column=name).error(
                "the column is missing; convert the data again"
            )
    layout = f"converted: {len(dense)} dense, {len(rules.columns)} ids, used as they are"
    layout += describe_labels(labels)
    bags = tuple(column.is_bag for column in rules.features)
    return Columns(dense, rules.columns, labels, True, layout, bags, weights)


def match_columns(rules: Rules, schema: pa.Schema, where: str, require_label: bool) -> Columns:
    """Find the columns of an encoder in a schema."""
    found = find_columns(
        schema,
        where,
        label=require_label,
        num_dense=len(rules.dense_columns),
        num_categories=len(rules.features),
        treat_as=rules.settings.treat_as,
        described=rules.schema,
    )
    if found.encoded != rules.encoded:
        words = ("raw", "already encoded")
        raise DataError(
            f"{where}: {found.layout}; the encoder was fitted on {words[rules.encoded]} data, "
            "give the same kind (or fit with treat_as)"
        )
    for (column, name), is_bag in zip(found_in(rules.features, found), found.bags, strict=True):
        if is_bag and not column.is_bag:
            raise Location(where, column=name).error(
                "holds lists, which it did not in the training data"
            )
    return found
