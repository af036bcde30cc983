# SPDX-License-Identifier: Apache-2.0
"""`Category`: a column of values with rows in a table; `Vocabulary`: the values it has learnt.

A new column has only a name and a rule. It learns its values from counts, grows from newer counts,
and encodes an array as ids, or as bags of ids. Columns that share a table share their values.

Id 0 is for missing values (null or empty text) and 1 for rare or unseen ones. The other values have
the ids 2, 3, ... by falling count. Equal counts are ordered by value, numbers before texts, so ids
depend only on the counts.

With a cap of `max_rows` only the most frequent values get a row of their own. An eighth of the rows
(at least one) are buckets, and the hash of every remaining frequent value selects one of them.
Values below the minimum count still map to 1.
"""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.bags import as_list_column, read_bags, read_factors
from sparsetrain.data.columns.counts import Counted, count_values, kind_of_column, of_kind
from sparsetrain.data.columns.plain import PlainIds
from sparsetrain.data.ragged import Ragged
from sparsetrain.data.schema.column_rule import ColumnRule
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import (
    Digits,
    as_plain,
    fill_nulls,
    is_bag,
    read_values,
    require_utf8,
)
from sparsetrain.data.values.arrow_values import Integers, NanRule, has_names, texts_of, values_of
from sparsetrain.data.values.location import Location
from sparsetrain.errors import ConfigError, DataWarning
from sparsetrain.parsing.identity import (
    HEXADECIMAL,
    KINDS,
    TEXT,
    UNSEEN,
    WHOLE,
    Entries,
    Texts,
)
from sparsetrain.parsing.identity import MISSING as MISSING

FIRST = UNSEEN + 1
MIN_CAP = FIRST + 2  # one value's own row and one bucket
_BUCKET_SHARE = 8
_MANY = 100  # warn from this many values without a row

Limits = tuple[int, int | None]  # `min_count` and `max_rows` of a column


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The values that have a row, and their rows.

    Attributes
    ----------
    kind : {"whole", "hexadecimal", "text"}
        Decides which values are equal; see `sparsetrain.parsing.identity`.
    numbers, number_ids : (n,) int64
        Numeric keys, all distinct, and their ids.
    texts : Arrow array (m,) of bytes
        Text keys, in UTF-8.
    text_ids : (m,) int64
    rows : int
        Rows of the table, including the two reserved rows; every id is below it. 0 until it is
        fitted.
    nan : NanRule
    rare_share : float
        Share of the non-missing training values that were too rare for a row, over all columns that
        share the table. No id depends on it.
    """

    # first row of a value; the rows before it are for missing and rare values
    first: ClassVar[int] = FIRST

    kind: str
    numbers: Array
    number_ids: Array
    texts: Any
    text_ids: Array
    rows: int
    nan: NanRule = field(default_factory=NanRule)
    rare_share: float | None = None

    def __repr__(self) -> str:
        return f"<Vocabulary: {self.rows} rows>"

    @classmethod
    def blank(cls, nan: NanRule) -> Vocabulary:
        """Return an empty vocabulary, without rows."""
        none = np.zeros(0, np.int64)
        return cls(WHOLE, none, none, pa.nulls(0, pa.large_binary()), none, 0, nan)

    def count(self, array: Any, location: Location) -> Counted:
        """Count the values of an array."""
        return count_values(array, self.nan, location)

    def learnt(
        self,
        counts: Counted,
        kind: str | None,
        is_criteo: bool,
        min_count: int,
        max_rows: int | None,
    ) -> Vocabulary:
        """Give ids to the values that occur at least `min_count` times.

        Without a `kind`, it is inferred from the counts and from `is_criteo`: whether the column
        has one of Criteo's names.
        """
        kind = kind or kind_of_column(counts, is_criteo)
        found = replace(self, kind=kind, rows=FIRST).extended(counts, min_count)
        if max_rows is None or found.rows <= max_rows:
            return found
        ids = np.concatenate([found.number_ids, found.text_ids])
        ids = _cap(ids, _hashes(found.numbers, found.texts), max_rows)
        number_ids, text_ids = np.split(ids, [len(found.numbers)])
        return replace(found, number_ids=number_ids, text_ids=text_ids, rows=max_rows)

    def extended(self, counts: Counted, min_count: int, cap: int | None = None) -> Vocabulary:
        """Give rows to values that occur at least `min_count` times and have no row.

        The most frequent value comes first; at equal counts, numbers precede texts. Values beyond
        `cap` rows get no row, nor does text in a column of numbers.
        """
        numbers, times, texts, text_times, foreign = of_kind(counts, self.kind)
        is_new, text_is_new = np.ones(len(numbers), bool), np.ones(len(texts), bool)
        if self.rows > FIRST:
            is_new = self.find_numbers(numbers) == UNSEEN
            text_is_new = self.find_texts(texts_of(texts)) == UNSEEN
        lost = int(times[is_new].sum() + text_times[text_is_new].sum()) + foreign
        seen = int(times.sum() + text_times.sum()) + foreign
        is_new &= times >= min_count
        text_is_new &= text_times >= min_count
        new_times = np.concatenate([times[is_new], text_times[text_is_new]])
        order = np.argsort(-new_times, kind="stable")
        order = order[: None if cap is None else max(cap - self.rows, 0)]
        ids = np.full(len(new_times), UNSEEN)
        ids[order] = self.rows + np.arange(len(order))
        number_ids, text_ids = np.split(ids, [np.count_nonzero(is_new)])
        kept, text_kept = number_ids != UNSEEN, text_ids != UNSEEN
        keys = np.concatenate([self.numbers, numbers[is_new][kept]])
        ascending = np.argsort(keys, kind="stable")
        text_is_new[text_is_new] = text_kept
        return replace(
            self,
            numbers=keys[ascending],
            number_ids=np.concatenate([self.number_ids, number_ids[kept]])[ascending],
            texts=pa.concat_arrays([self.texts, texts.filter(pa.array(text_is_new))]),
            text_ids=np.concatenate([self.text_ids, text_ids[text_kept]]),
            rows=self.rows + len(order),
            rare_share=(lost - int(new_times[order].sum())) / max(seen, 1),
        )

    def values(self) -> list[int | str | None]:
        """Return the value of each row; None for reserved rows and buckets."""
        found: list[int | str | None] = [None] * self.rows
        times = np.bincount(np.concatenate([self.number_ids, self.text_ids]), minlength=self.rows)
        for number, row in zip(self.numbers.tolist(), self.number_ids.tolist(), strict=True):
            found[row] = number if times[row] == 1 else None
        for text, row in zip(self.texts.to_pylist(), self.text_ids.tolist(), strict=True):
            found[row] = text.decode(errors="backslashreplace") if times[row] == 1 else None
        return found

    def examples(self) -> list[int | str]:
        """Return a few of the values."""
        texts = [text.decode(errors="replace") for text in self.texts[:2].to_pylist()]
        return [*self.numbers[:2].tolist(), *texts]

    @cached_property
    def place(self) -> tuple[Pool, int]:
        """The pool that holds it, its own or an encoder's, and its position there."""
        return Pool((self.entries,)), 0

    @property
    def entries(self) -> Entries:
        """Its values and ids, as `parsing.lookup` takes them."""
        kind = KINDS.index(self.kind)
        return Entries(kind, self.numbers, self.number_ids, texts_of(self.texts), self.text_ids)

    def find_numbers(self, numbers: Array) -> Array:
        """Return the ids (n,) int32 of integers (n,)."""
        pool, column = self.place
        return pool.lookup.number_ids(column, numbers)

    def find_texts(self, texts: Texts) -> Array:
        """Return the ids (n,) int32 of texts."""
        pool, column = self.place
        return pool.lookup.text_ids(column, texts)

    def encode(self, array: Any, location: Location) -> Array:
        """Return the ids (n,) int32 of an Arrow array, all below `rows`."""
        require_utf8(array, location)
        if not has_names(array):
            return self._encode(as_plain(array), location)
        # The dictionary's values are looked up once, then each row's code selects a result.
        ids = np.append(self._encode(array.dictionary, location), np.int32(MISSING))
        codes, missing = fill_nulls(array.indices)
        if array.indices.null_count:
            codes = codes.astype(np.int64) + missing * (len(ids) - 1)
        return np.take(ids, codes)

    def _encode(self, array: Any, location: Location) -> Array:
        pool, column = self.place
        lookup = pool.lookup
        if self.kind == HEXADECIMAL and isinstance(array.type, Digits):
            return lookup.number_ids(column, *fill_nulls(array.storage))
        values = values_of(array, self.nan, location)
        if isinstance(values, Integers):
            return lookup.number_ids(column, *values)
        return lookup.text_ids(column, values)


@dataclass(frozen=True, eq=False)
class Pool:
    """Columns that share a lookup, which is built at first use."""

    columns: tuple[Entries, ...]

    @cached_property
    def lookup(self) -> Any:
        """The `Lookup` of all columns."""
        from sparsetrain.parsing.lookup import Lookup  # imports TVM

        return Lookup(self.columns)


def _cap(ids: Array, hashes: Array, max_rows: int) -> Array:
    """Keep ids below the first bucket; replace others by the bucket that the hash selects."""
    buckets = max(1, (max_rows - FIRST) // _BUCKET_SHARE)
    own = max_rows - buckets
    # The remainder is of the unsigned hash, so that no bucket is negative.
    bucket = own + (hashes % np.uint64(buckets)).astype(np.int64)
    return np.where(ids < own, ids, bucket)


def _hashes(numbers: Array, texts: Any) -> Array:
    """Return (n + m,) uint64: MurmurHash3's 64-bit finalizer of each number or text's CRC."""
    checksums = np.array([zlib.crc32(text) for text in texts.to_pylist()], dtype=np.uint64)
    x = np.concatenate([numbers.view(np.uint64), checksums])
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


Values = Vocabulary | PlainIds


@dataclass(frozen=True, eq=False)
class Category:
    """A category column.

    Attributes
    ----------
    name : str
    owner : str
        Name of the column that owns its table: its own name, unless it shares a table.
    rule : ColumnRule
        Its settings in the schema.
    is_bag : bool
        Whether it held lists when it was fitted.
    is_unsigned : bool
        Whether it was uint64; a value from 2**63 on then has a negative key with the same bits.
    values : Vocabulary or PlainIds
        Its values and their rows; empty until it is fitted.
    """

    name: str
    owner: str
    values: Values
    rule: ColumnRule = field(default_factory=ColumnRule)
    is_bag: bool = False
    is_unsigned: bool = False

    @classmethod
    def of(
        cls, name: str, schema: Schema, values: Values, *, lists: bool, unsigned: bool
    ) -> Category:
        """Return a column with its rule, and its table's owner, in a schema."""
        return cls(name, schema.owner(name), values, schema.rule(name), lists, unsigned)

    @property
    def has_table(self) -> bool:
        """Whether it has its own table."""
        return self.owner == self.name

    @property
    def shares(self) -> dict[str, str]:
        """Its entry `share_embedding` in a schema; empty if it has its own table."""
        return {} if self.has_table else {"share_embedding": self.owner}

    @property
    def reserves(self) -> bool:
        """Whether it reserves ids for missing and rare values."""
        return self.values.first > 0

    @property
    def takes_values(self) -> bool:
        """Whether a plain Python value maps to one id, as `encode.few_rows` needs."""
        return self.reserves and not self.is_bag

    @property
    def rows(self) -> int:
        """Rows of its table, including the two reserved rows of raw data."""
        return self.values.rows

    def value_of_rows(self) -> list[int | str | None]:
        """Return the value of each row of the table; see `Encoder.values`."""
        if not isinstance(self.values, Vocabulary):
            raise ConfigError(
                f"{self.name}: the encoder was fitted on already encoded data, so the values of "
                "this column are unknown; an id is the number of its row"
            )
        found = self.values.values()
        return [self.shown(v) if isinstance(v, int) else v for v in found]

    def shown(self, number: int) -> int:
        """Return the value of a numeric key."""
        return number % 2**64 if self.is_unsigned else number

    def count(self, array: Any, factors: Any | None, location: Location) -> Counted:
        """Count its values, in lists or not; check `factors`, the weights, as `encode` does."""
        if not is_bag(array.type):
            return self.values.count(array, location)
        counted, lengths = read_values(array, self.values.count, location)
        if factors is not None:
            read_factors(factors, lengths, self.rule, location)
        return counted

    def learnt(self, counts: Counted, limits: Limits, is_criteo: bool) -> Values:
        """Give ids to its table's values; their kind is the rule's, or detected from the values."""
        found = self.values.learnt(counts, self.rule.kind, is_criteo, *limits)
        self._warn_of_text(found.kind, counts)
        return found

    def grown(self, counts: Counted, limits: Limits) -> Values:
        """Append rows for values without a row."""
        self._warn_of_text(self.values.kind, counts)
        return self.values.extended(counts, *limits)

    def _warn_of_text(self, kind: str | None, counts: Counted) -> None:
        """Warn if a column of numbers holds only text that is no number, and so gets no rows."""
        if kind in (TEXT, None) or len(counts.numbers[0]) or not len(counts.texts[0]):
            return
        assert kind is not None
        known = of_kind(counts, kind)
        if known.foreign >= _MANY and not len(known.numbers):
            warnings.warn(
                f"column {self.name}: none of its {known.foreign:,} values is a number of the "
                f"column's kind, {kind!r}, so none gets a row; learn it with kind = 'text'",
                DataWarning,
                stacklevel=5,
            )

    def extends(self, other: Category) -> bool:
        """Return whether this is the column `other`, and keeps the rows of its values."""
        if (self.name, self.is_bag) != (other.name, other.is_bag):
            return False
        before, now = other.values, self.values
        if now.rows < before.rows or type(before) is not type(now):
            return False
        if isinstance(before, PlainIds) or isinstance(now, PlainIds):
            return True
        same_numbers = np.array_equal(now.find_numbers(before.numbers), before.number_ids)
        same_texts = np.array_equal(now.find_texts(texts_of(before.texts)), before.text_ids)
        return now.kind == before.kind and same_numbers and same_texts

    def encode(self, array: Any, factors: Any | None, location: Location) -> Array | Ragged:
        """Return the ids (n,) int32 of an array, or the bags of lists; `factors` are their weights.

        A column that had lists when it was fitted may have plain values, or only nulls, in other
        data.
        """
        if not (self.is_bag or is_bag(array.type)):
            return self.values.encode(array, location)
        return read_bags(
            as_list_column(array, self.values.nan) if self.is_bag else array,
            None if factors is None else as_list_column(factors, NanRule("error")),
            self.rule,
            self.values.encode,
            location,
        )
