# SPDX-License-Identifier: Apache-2.0
"""What `convert` wrote, seen by a reader: files marked with the encoder they were written with.

A marked file holds what the encoder would make of the raw rows, so an encoder reads it beside raw
data, and a model trained on converted data scores raw rows. Its ids mean nothing to any other
encoder, which is refused.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.read.footers import converted_mark
from sparsetrain.data.schema.columns import Columns
from sparsetrain.data.schema.names import find_label
from sparsetrain.data.values.place import Place
from sparsetrain.errors import ConfigError, DataError

LABEL = "label"
WEIGHTS, FLAG = "_weights", "_missing"  # what follows a column's name in the columns beside it


def dense_names(rules: Rules) -> tuple[str, ...]:
    """Return the names of the dense columns of converted data, one for each dense input."""
    flags = rules.num_dense > len(rules.dense_columns)
    return rules.dense_columns + tuple(f"{n}{FLAG}" for n in rules.dense_columns if flags)


def weight_names(rules: Rules) -> tuple[str | None, ...]:
    """Return, for each category column of converted data, the column of its weights."""
    names = rules.columns
    return tuple(f"{n}{WEIGHTS}" if rules.schema.rule(n).weights else None for n in names)


def check_converted_names(rules: Rules) -> None:
    """Refuse columns that converted data could not tell apart, by their names.

    Raises
    ------
    ConfigError
        With the first of them.
    """
    more = (*weight_names(rules), rules.schema.weights)
    names = Counter([*dense_names(rules), *rules.columns, *(name for name in more if name)])
    for name, count in names.items():
        if name == LABEL:
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
    """Return the columns of a converted file.

    Raises
    ------
    DataError
        If another encoder converted it, or a column is gone.
    """
    if converted_mark(schema) != fingerprint:
        raise DataError(
            f"{where}: converted with another encoder than this one; convert the raw data with "
            "this one (convert --encoder), or train on this data"
        )
    label = find_label(schema.names, LABEL, Place(where)) if require_label else None
    dense, weights = dense_names(rules), weight_names(rules)
    for name in (*dense, *rules.columns, *(name for name in weights if name)):
        if name not in schema.names:
            raise Place(where, column=name).error("the column is missing; convert the data again")
    layout = f"converted: {len(dense)} dense, {len(rules.columns)} ids, used as they are"
    layout += f", label in {label}" if label else ""
    return Columns(dense, rules.columns, label, True, layout, rules.bags, weights)
