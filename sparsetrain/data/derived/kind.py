# SPDX-License-Identifier: Apache-2.0
"""`Kind`: a way to compute a column from the row's other columns.

A kind declares and checks the options that select it in a schema, names the columns it reads, and
computes the result. Missing values and NaN stay missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import EMPTY, FLOAT, INTEGER, TEXT, kind_of
from sparsetrain.data.values.arrow_values import NanRule, read_numbers
from sparsetrain.data.values.location import Location
from sparsetrain.system.argument_checks import require_int

Column = tuple[pa.Array, Location]
# Arrow types that a kind accepts besides nulls, and words for them in messages. If there are no
# types, the kind itself checks the type.
Takes = tuple[tuple[str, ...], str]
ANY: Takes = (), "anything"
NUMBERS: Takes = (INTEGER, FLOAT, TEXT), "numbers"
TEXTS: Takes = (TEXT,), "text"
NAMES: Takes = (INTEGER, TEXT), "whole numbers or text"


@dataclass(frozen=True)
class Kind:
    """A kind of derived column; its fields are its options, which have defaults.

    Attributes
    ----------
    key : str
        The option that selects this kind.
    others : tuple of str
        Options that each name a further source column.
    type : pyarrow.DataType
        Type of the result.
    takes : Takes
    learns : str
        The option that training data can determine and that replaces `key`, if any; see `learnt`.
    is_native : bool
        Whether the C library of an exported model computes it.
    """

    key: ClassVar[str]
    others: ClassVar[tuple[str, ...]] = ()
    type: ClassVar[pa.DataType] = pa.int64()
    takes: ClassVar[Takes] = ANY
    learns: ClassVar[str] = ""
    is_native: ClassVar[bool] = False

    source: str = field(metadata={"alias": "from"})

    @classmethod
    def given(cls, rule: Any) -> str:
        """Return a rule's options of this kind in words; "" if it has none."""
        return cls.key if getattr(rule, cls.key) is not None else ""

    def check(self, where: str) -> None:
        """Refuse options that are invalid, whatever the data."""

    def make(self, *columns: Column) -> pa.Array:
        """Compute the column from its sources."""
        raise NotImplementedError

    def learnt(self, numbers: Array) -> Any:
        """Learn the option `learns` from numbers (n,) without NaN; n may be 0."""
        raise NotImplementedError


def require_source(column: Column, kind: type[Kind]) -> Column:
    """Return a column if the kind accepts its type; else raise."""
    array, location = column
    types, words = kind.takes
    is_bool = pa.types.is_boolean(array.type)
    if types and (is_bool or kind_of(array.type) not in (*types, EMPTY)):
        raise location.error(f"type {array.type} cannot be used for {kind.key!r}; it takes {words}")
    return column


def numbers_of(column: Column) -> tuple[Array, Array]:
    """Return numbers (n,) float64, 0 where missing, and which are missing (n,) bool."""
    return read_numbers(column[0], NanRule("missing"), column[1])


def as_buckets(buckets: Array, missing: Array) -> pa.Array:
    """Return bucket numbers as an int64 column, null where `missing`."""
    return pa.array(buckets.astype(np.int64), pa.int64(), mask=missing)


def check_counts(where: str, rule: Any, keys: Sequence[str]) -> None:
    """Refuse options in `keys` that are neither None nor a whole number from 1."""
    for key in keys:
        if (value := getattr(rule, key)) is not None:
            require_int(f"{where}.{key}", value)
