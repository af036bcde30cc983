# SPDX-License-Identifier: Apache-2.0
"""Which columns of some data an encoder reads; of data that `convert` wrote see `converted`.

Columns are matched by their position within a naming family: an encoder fitted on `I1..`, `C1..`
reads `int_0..`, `cat_0..` as well.
"""

from __future__ import annotations

import pyarrow as pa

from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.schema.columns import Columns, check_alike, find_columns
from sparsetrain.data.values.place import Place
from sparsetrain.errors import DataError


def match_columns(rules: Rules, schema: pa.Schema, where: str, require_label: bool) -> Columns:
    """Find the columns of an encoder in a schema.

    Raises
    ------
    DataError
        If one is missing, or the data is encoded and the encoder for raw data, or the reverse.
    """
    found = find_columns(
        schema,
        where,
        label=require_label,
        num_dense=len(rules.dense_columns),
        num_categories=len(rules.columns),
        treat_as=rules.settings.treat_as,
        described=rules.schema,
    )
    if found.encoded != rules.encoded:
        words = ("raw", "already encoded")
        raise DataError(
            f"{where}: {found.layout}; the encoder was fitted on {words[rules.encoded]} data, "
            "give the same kind (or fit with treat_as)"
        )
    check_alike(schema, found.categories, rules.owners, where)
    for name, is_bag, was in zip(found.categories, found.bags, rules.bags, strict=True):
        if is_bag and not was:
            raise Place(where, column=name).error(
                "holds lists, which it did not in the training data"
            )
    return found
