# SPDX-License-Identifier: Apache-2.0
"""The encoder in an export: records for the manifest, and hash tables to map into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sparsetrain.data.columns.category import Pool, Vocabulary
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.schema.derived import Derived
from sparsetrain.serving.manifest import Record, float_bits
from sparsetrain.serving.model_inputs import ModelInputs


def hash_tables(rules: Rules, read: ModelInputs) -> Sequence[np.ndarray]:
    """Return the tables in which the key kernel finds ids; none for already encoded columns."""
    known = _vocabularies(rules, read)
    return Pool(tuple(each.entries for each in known)).lookup.arrays if known else ()


def _vocabularies(rules: Rules, read: ModelInputs) -> list[Vocabulary]:
    """Return the vocabularies of the columns that a model reads; a shared one is listed once."""
    columns = {column.name: column.values for column in rules.features}
    wanted = dict.fromkeys(columns[feature.column] for feature in read.features)
    return [values for values in wanted if isinstance(values, Vocabulary)]


def signature(rules: Rules, read: ModelInputs) -> Record:
    """Return fields of the record "program": kinds and sizes of inputs; see `native/internal.h`."""
    has_ends = read.takes_features or any(record[1] == "offsets" for record in read.records)
    flags = sum(column.has_flag for column in read.dense)
    width = sum(len(column.inputs) for column in read.dense)
    encoded = not rules.reserves
    nan_is_missing = rules.settings.nan == "missing"
    return tuple(
        map(int, (has_ends, read.takes_features, max(width, 1), flags, encoded, nan_is_missing))
    )


def encoder_records(rules: Rules, read: ModelInputs) -> Iterator[Record]:
    """Yield the records of the columns of an encoder that a model reads."""
    categories = [feature.column for feature in read.features]
    weights = [rules.schema.rule(name).weights for name in categories]
    named = [*(column.name for column in read.dense), *categories, *filter(None, weights)]
    columns = list(dict.fromkeys(_derivation(rules, name).source for name in named))
    yield from (("column", name) for name in columns)

    def source(name: str) -> Record:
        rule = _derivation(rules, name)
        return name, columns.index(rule.source), rule.divide, rule.modulo or 0

    for dense in read.dense:
        form, *numbers, size = dense.law
        bits = map(float_bits, numbers)
        yield "dense", *source(dense.name), dense.place, size, _FORMS.index(form), *bits
    known = {column.name: column for column in rules.features}
    tables: dict[Any, int] = {v: at for at, v in enumerate(_vocabularies(rules, read))}
    for feature, factors in zip(read.features, weights, strict=True):
        column = known[feature.column]
        keep = column.rule.max_length or 0, int(column.rule.keep == "last")
        yield (
            *("category", *source(column.name), feature.first, column.rows, int(column.is_bag)),
            *(*keep, columns.index(factors) if factors else -1),
            *(int(feature.single), feature.length, feature.like),
            *(tables.get(column.values, -1), *feature.together),
        )


_FORMS = ("plain", "linear", "log")


def _derivation(rules: Rules, name: str) -> Derived:
    """Return how the C library derives a column; with divisor 0, it reads the column directly."""
    rule = rules.schema.derived.get(name)
    return rule if rule and rule.of.is_native else Derived(name, divide=0)


def derived_rules(rules: Rules, read: ModelInputs) -> dict[str, Any]:
    """Return the rules of derived columns that a model reads and the C library cannot compute."""
    wanted = {feature.column for feature in read.features}
    plain = rules.schema.to_dict().get("derived", {})
    made = {n for n, rule in rules.schema.derived.items() if n in wanted and not rule.of.is_native}
    return {name: rule for name, rule in plain.items() if name in made}
