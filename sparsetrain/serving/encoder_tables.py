# SPDX-License-Identifier: Apache-2.0
"""Encoder of an exported model: records of its rules, and hash tables to map into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sparsetrain.data.columns.vocabulary import Vocabulary, pool_of
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.schema.derived import Derived
from sparsetrain.data.schema.schema import Linear
from sparsetrain.serving.manifest import Record, float_bits
from sparsetrain.serving.model_inputs import ModelInputs


def hash_tables(rules: Rules, read: ModelInputs) -> Sequence[np.ndarray]:
    """Return the tables in which the key kernel finds ids; none for already encoded columns."""
    known = _vocabularies(rules, read)
    return pool_of(known).lookup.arrays if known else ()


def _vocabularies(rules: Rules, read: ModelInputs) -> list[Vocabulary]:
    """Return the vocabularies of the columns that a model reads, each shared one once."""
    columns = {column.name: column.values for column in rules.features}
    wanted = dict.fromkeys(columns[feature.column] for feature in read.features)
    return [values for values in wanted if isinstance(values, Vocabulary)]


def signature(rules: Rules, read: ModelInputs) -> Record:
    """Return the record that describes a program's arguments; see `native/internal.h`."""
    apart = any(record[2] != -1 for record in read.records)
    has_ends = apart or any(record[1] == "offsets" for record in read.records)
    flags = len(read.dense) if read.flags else 0
    width = len(read.dense) + flags + sum(read.vectors.values())
    is_encoded, nan_is_missing = rules.encoded, rules.settings.nan == "missing"
    return tuple(map(int, (has_ends, apart, max(width, 1), flags, is_encoded, nan_is_missing)))


def encoder_records(rules: Rules, read: ModelInputs) -> Iterator[Record]:
    """Yield the records of the columns of an encoder that a model reads."""
    categories = [feature.column for feature in read.features]
    weights = [rules.schema.rule(name).weights for name in categories]
    named = [*read.dense, *read.vectors, *categories, *filter(None, weights)]
    columns = list(dict.fromkeys(_derivation(rules, name).source for name in named))
    yield from (("column", name) for name in columns)

    def source(name: str) -> Record:
        rule = _derivation(rules, name)
        return name, columns.index(rule.source), rule.divide, rule.modulo or 0

    for place, name in enumerate(read.dense):
        linear = rules.schema.linear.get(name)
        law, form = linear or Linear(), "plain" if rules.encoded else "linear" if linear else "log"
        numbers = (law.center if linear else rules.settings.dense_fill, law.center, law.scale)
        yield "dense", *source(name), place, 0, _FORMS.index(form), *map(float_bits, numbers)
    place = len(read.dense) * (1 + read.flags)
    for name, size in read.vectors.items():
        yield (
            "dense",
            *source(name),
            place,
            size,
            _FORMS.index("plain"),
            *map(float_bits, (0, 0, 1)),
        )
        place += size
    known = {column.name: column for column in rules.features}
    tables: dict[Any, int] = {v: at for at, v in enumerate(_vocabularies(rules, read))}
    for feature, factors in zip(read.features, weights, strict=True):
        column = known[feature.column]
        keep = column.rule.max_length or 0, int(column.rule.keep == "last")
        yield (
            *("category", *source(column.name), feature.first, column.rows, int(column.is_bag)),
            *(*keep, columns.index(factors) if factors else -1),
            *(int(feature.single), feature.length, feature.like),
            tables.get(column.values, -1),
        )


_FORMS = ("plain", "linear", "log")


def _derivation(rules: Rules, name: str) -> Derived:
    """Return how the C library derives a column; the divisor 0 means that it reads it directly."""
    rule = rules.schema.derived.get(name)
    return rule if rule and rule.kind == "arithmetic" else Derived(name, divide=0)


def derived_rules(rules: Rules, read: ModelInputs) -> dict[str, Any]:
    """Return the rules of derived columns that a model reads and the C library cannot compute."""
    wanted = {feature.column for feature in read.features}
    plain = rules.schema.to_dict().get("derived", {})
    kinds = {name: rule.kind for name, rule in rules.schema.derived.items()}
    return {n: rule for n, rule in plain.items() if n in wanted and kinds[n] != "arithmetic"}
