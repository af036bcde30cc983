# SPDX-License-Identifier: Apache-2.0
"""Numbers as buckets: each dense column gets a derived category column, with rows in a table.

A missing number has its own row, like any missing category. A model that reads only categories thus
reads numbers too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from sparsetrain.data.schema.column_rule import ColumnRule
from sparsetrain.data.schema.derived import Derived
from sparsetrain.data.schema.schema import Schema
from sparsetrain.errors import ConfigError

Numbers = Literal["scaled", "quantiles", "logarithms", "piecewise", "binned", "best"]
# The rule that makes buckets, by `numbers`: quantiles of the training rows, or steps of a
# logarithm, as in the winning entry to Criteo's contest (Juan et al. 2016,
# https://doi.org/10.1145/2959100.2959134).
_QUANTILES = Derived("", quantiles=32)
_RULES = {
    "quantiles": _QUANTILES,
    "logarithms": Derived("", log=2),
    "piecewise": _QUANTILES,
    "binned": _QUANTILES,
}
_OF_MODELS = ("piecewise", "binned")  # these add no categories: the model gets the boundaries


def with_buckets(
    schema: Schema,
    numbers: Numbers,
    dense: Sequence[str] | None = None,
    categories: Sequence[str] | None = None,
    *,
    keep: bool = True,
) -> Schema:
    """Return a schema that also has buckets of its dense columns as categories.

    Parameters
    ----------
    schema : Schema
    numbers : {"scaled", "quantiles", "logarithms", "piecewise", "binned", "best"}
        "quantiles" adds 32 buckets with about equally many rows, "logarithms" a bucket for each
        power of 2; "scaled" adds none. "piecewise" and "binned" learn the quantiles but add no
        categories: a model with the same `numbers` uses them as boundaries. "best" is "binned", or
        "scaled" if there are no numbers or the schema has its own buckets of them (measured in
        benchmarks/results/numbers.md).
    dense, categories : sequence of str, optional
        Names of the columns, if the schema has none since the columns are Criteo's.
    keep : bool
        Whether the numbers remain dense inputs too.

    Examples
    --------
    >>> schema = Schema(dense=("price",), categories=("site",))
    >>> with_buckets(schema, "quantiles").categories
    ('site', 'price bucket')
    """
    own = tuple(dense or ()) if schema.categories is None else schema.dense
    if numbers == "best":
        bucketed = {rule.source for rule in schema.derived.values()}.intersection(own)
        numbers = "binned" if own and not bucketed else "scaled"
    if numbers == "scaled":
        return schema
    if numbers not in _RULES:
        raise ConfigError(
            f"numbers is {numbers!r}; it must be 'best', 'scaled', {' or '.join(map(repr, _RULES))}"
        )
    named = tuple(categories or ()) if schema.categories is None else schema.categories
    made = {f"{name} bucket": replace(_RULES[numbers], source=name) for name in own}
    if taken := [name for name in made if name in {*named, *schema.derived}]:
        raise ConfigError(f"numbers={numbers!r}: there is a column {taken[0]!r} already: rename it")
    if numbers in _OF_MODELS:
        return replace(schema, derived={**schema.derived, **made})
    every = {name: ColumnRule(min_count=1) for name in made}  # a bucket is never rare
    return replace(
        schema,
        dense=own if keep else (),
        linear=schema.linear if keep else {},
        categories=(*named, *made),
        derived={**schema.derived, **made},
        columns={**schema.columns, **every},
    )
