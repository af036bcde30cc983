# SPDX-License-Identifier: Apache-2.0
"""Encoder of an exported model: records of its rules, and hash tables that are mapped.

A table of n keys has 2 n to 4 n slots of 16 bytes; a key lies at its hash or behind it. Numbers are
their own key, texts have their CRC-32, and lie in a pool, each behind its length.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from sparsetrain.data.columns.vocabulary import Vocabulary
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.schema.schema import Linear
from sparsetrain.errors import ConfigError
from sparsetrain.parsing.lookup import own_slots
from sparsetrain.serving.manifest import Record, float_bits
from sparsetrain.serving.model_inputs import ModelInputs

_NUMBER = np.dtype([("key", "<i8"), ("id", "<i4"), ("unused", "<i4")])
_TEXT = np.dtype([("at", "<i8"), ("hash", "<u4"), ("id", "<i4")])


def _slots_of(keys: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the slot of each key (n,) of 64 bits, and the bits of a slot."""
    bits = max(1, (2 * len(keys)).bit_length())
    return own_slots(keys, bits), bits


def _number_table(rule: Vocabulary) -> tuple[np.ndarray, int]:
    places, bits = _slots_of(rule.numbers)
    table = np.zeros(1 << bits, _NUMBER)
    table["key"][places], table["id"][places] = rule.numbers, rule.number_ids
    return table, bits


def _text_table(rule: Vocabulary) -> tuple[np.ndarray, int, bytes]:
    hashes = np.array([zlib.crc32(text) for text in rule.texts], np.uint32)
    places, bits = _slots_of(hashes.astype(np.uint64))
    table = np.zeros(1 << bits, _TEXT)
    sizes = np.array([4 + len(text) for text in rule.texts], np.int64)
    table["at"][places] = np.cumsum(sizes) - sizes
    table["hash"][places], table["id"][places] = hashes, rule.text_ids
    pool = b"".join(len(text).to_bytes(4, "little") + text for text in rule.texts)
    return table, bits, pool


class Values:
    """What `values.bin` holds: the hash tables of all columns, one for those that share."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._size = 0
        self._known: dict[int, Record] = {}

    def add(self, rule: Any) -> Record:
        """Return where the tables of a rule lie; of already encoded ids, nothing."""
        if not isinstance(rule, Vocabulary):
            return ()
        if id(rule) not in self._known:
            numbers, number_bits = _number_table(rule)
            texts, text_bits, pool = _text_table(rule)
            places = [self._append(part) for part in (numbers.tobytes(), texts.tobytes(), pool)]
            self._known[id(rule)] = (*places, number_bits, text_bits)
        return self._known[id(rule)]

    def _append(self, part: bytes) -> int:
        begin = self._size
        padded = part + bytes(-len(part) % 16)
        self.parts.append(padded)
        self._size += len(padded)
        return begin


def encoder_records(rules: Rules, read: ModelInputs, values: Values) -> Iterator[Record]:
    """Yield the records of the columns of an encoder that a model reads."""
    derived = rules.schema.derived
    categories = [feature.column for feature in read.features]
    weights = [rules.schema.rule(name).weights for name in categories]
    named = [*read.dense, *read.vectors, *categories, *(name for name in weights if name)]
    used = [name for name in named if name in derived]
    stored = [derived[name].source if name in derived else name for name in named]
    columns = list(dict.fromkeys(stored))
    yield from (("column", name) for name in columns)
    for name in dict.fromkeys(used):
        rule = derived[name]
        if rule.kind != "arithmetic":
            raise ConfigError(
                f"export: {name} is derived by {rule.kind}, which exported models do not compute: "
                "derive the column before, or predict with st.load_predictor"
            )
        yield "derived", name, columns.index(rule.source), rule.divide, rule.modulo or 0
    number = {name: at for at, name in enumerate([*columns, *dict.fromkeys(used)])}
    settings = rules.settings
    nan_is_missing = settings.nan == "missing"
    filled = float_bits(float(settings.dense_fill))
    wraps = 0
    yield "encoding", int(rules.encoded), int(read.flags), int(nan_is_missing), filled, wraps
    for name in read.dense:
        law = rules.schema.linear.get(name, Linear())
        linear = int(name in rules.schema.linear)
        yield "dense", number[name], linear, float_bits(law.center), float_bits(law.scale)
    yield from (("numbers", number[name], width) for name, width in read.vectors.items())
    known = {column.name: column for column in rules.features}
    for feature, factors in zip(read.features, weights, strict=True):
        name = feature.column
        column = known[name]
        kind, limit = column.known, column.rule
        keep = (limit.max_length or 0, int(limit.keep == "last"))
        of_ids = number[factors] if factors else -1
        eights = {"hexadecimal": 1}.get(str(kind.kind), 0)
        yield (
            *(
                "category",
                number[name],
                feature.first,
                kind.rows,
                int(column.is_bag),
                *keep,
                of_ids,
            ),
            *(int(feature.single), feature.length, feature.like),
            eights,
            *values.add(kind),
        )
