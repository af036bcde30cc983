# SPDX-License-Identifier: Apache-2.0
"""Crossed columns: a hash of two columns' values; 12 and "12" are equal, in any integer type."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparsetrain.data.derived.kind import NAMES, Column, Kind, Takes, as_buckets, check_counts
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import TEXT, as_plain, fill_nulls, kind_of, require_utf8
from sparsetrain.data.values.location import Location
from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import require_type

_MOST_BUCKETS = 2**31 - 1


@dataclass(frozen=True)
class Cross(Kind):
    """A hash, below `buckets`, of a row's values in the source column and the column `cross`."""

    key: ClassVar[str] = "cross"
    others: ClassVar[tuple[str, ...]] = ("cross",)
    takes: ClassVar[Takes] = NAMES

    cross: str | None = None
    buckets: int | None = None

    def check(self, where: str) -> None:
        """Refuse `cross` without `buckets`, and vice versa."""
        check_counts(where, self, ("buckets",))
        require_type(f"{where}.cross", self.cross, str, "a column's name")
        if (self.buckets is None) != (self.cross is None):
            raise ConfigError(f"{where}: cross and buckets go together: give both")
        if self.buckets is not None and self.buckets > _MOST_BUCKETS:
            raise ConfigError(
                f"{where}: buckets is {self.buckets}; it must be {_MOST_BUCKETS} or less"
            )

    def make(self, *columns: Column) -> pa.Array:
        """Hash the values of both columns, as int64."""
        assert self.buckets is not None
        (left, no_left), (right, no_right) = (_hashed(*column) for column in columns)
        mixed = left * np.uint64(0x9E3779B97F4A7C15) + right
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        mixed ^= mixed >> np.uint64(32)
        return as_buckets(mixed % np.uint64(self.buckets), no_left | no_right)


def _hashed(array: pa.Array, location: Location) -> tuple[Array, Array]:
    """Return 64-bit hashes of values as text, and a mask of missing values."""
    array = as_plain(array)
    if kind_of(array.type) == TEXT:
        require_utf8(array, location, bytes_too=True)
    else:
        array = array.cast(pa.string())
    coded = pc.dictionary_encode(array.cast(pa.large_binary()))
    words = [hashlib.blake2b(v, digest_size=8).digest() for v in coded.dictionary.to_pylist()]
    codes, missing = fill_nulls(coded.indices)
    hashes = np.frombuffer(b"".join(words) or bytes(8), "<u8")[codes]
    empty = pc.equal(pc.binary_length(array), 0).fill_null(True)
    return hashes, missing | empty.to_numpy(zero_copy_only=False)
