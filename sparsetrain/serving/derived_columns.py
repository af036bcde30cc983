# SPDX-License-Identifier: Apache-2.0
"""Derived columns of a request to an exported model: buckets, lists in text, pairs.

The C library computes only quotients and remainders, and expects all other derived columns in the
request. This module computes them from their sources, by the same code as in training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparsetrain.errors import DataError, shown
from sparsetrain.serving.column import Column

FILE = "derived.json"


def read_rules(content: bytes) -> dict[str, Any]:
    """Return the rule of each column, from the exported manifest."""
    from sparsetrain.data.schema.derived import Derived
    from sparsetrain.data.schema.schema_file import fill

    return {name: fill(rule, Derived, FILE) for name, rule in json.loads(content).items()}


def with_derived(columns: Mapping[str, Column], rules: Mapping[str, Any]) -> dict[str, Column]:
    """Return the columns of a request, with missing derived columns computed.

    Raises
    ------
    DataError
        If a source column is missing, or a rule does not accept a value.
    """
    import pyarrow as pa

    from sparsetrain.data.read.added_columns import derived_column
    from sparsetrain.data.values.location import Location
    from sparsetrain.serving.requests import as_feature

    found = dict(columns)
    for name, rule in rules.items():
        if name in columns:
            continue
        lacking = next((source for source in rule.sources if source not in columns), None)
        if lacking is not None:
            raise DataError(f"column {shown(lacking)} is missing: {shown(name)} is derived from it")
        arrays = [columns[source].as_arrow() for source in rule.sources]
        piece = pa.RecordBatch.from_arrays(arrays, names=[*rule.sources])
        found[name] = as_feature(derived_column(piece, rule, Location("request")), name)
    return found
