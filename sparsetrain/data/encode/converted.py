# SPDX-License-Identifier: Apache-2.0
"""What `convert` wrote, seen by a reader: files marked with the encoder they were written with.

A marked file holds what the encoder would make of the raw rows, so an encoder reads it beside raw
data, and a model trained on converted data scores raw rows. Its ids mean nothing to any other
encoder, which is refused.
"""

from __future__ import annotations

import pyarrow as pa

from sparsetrain.errors import DataError

from ..read.footers import converted_mark
from ..schema.columns import Columns
from ..schema.names import find_label
from ..values.place import Place
from .rules import Rules

WEIGHTS, FLAG = "_weights", "_missing"  # what follows a column's name in the columns beside it


def dense_names(rules: Rules) -> tuple[str, ...]:
    """Return the names of the dense columns of converted data, one for each dense input."""
    flags = rules.num_dense > len(rules.dense_columns)
    return rules.dense_columns + tuple(f"{n}{FLAG}" for n in rules.dense_columns if flags)


def weight_names(rules: Rules) -> tuple[str | None, ...]:
    """Return, for each category column of converted data, the column of its weights."""
    names = rules.columns
    return tuple(f"{n}{WEIGHTS}" if rules.schema.rule(n).weights else None for n in names)


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
    label = find_label(schema.names, "label", Place(where)) if require_label else None
    dense, weights = dense_names(rules), weight_names(rules)
    for name in (*dense, *rules.columns, *(name for name in weights if name)):
        if name not in schema.names:
            raise Place(where, column=name).error("the column is missing; convert the data again")
    layout = f"converted: {len(dense)} dense, {len(rules.columns)} ids, used as they are"
    layout += f", label in {label}" if label else ""
    return Columns(dense, rules.columns, label, True, layout, rules.bags, weights)
