# SPDX-License-Identifier: Apache-2.0
"""`Interactions`: the items that users chose, in order of time, and splits for ranking.

A split has three tables with the columns user, history and item, which ranking models read, and a
fourth with all interactions, from which an encoder learns. The whole log is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.ragged import Ragged, one_each
from sparsetrain.data.read.interaction_columns import read_columns
from sparsetrain.data.read.split import (
    Unit,
    require_unit,
    timestamp,
    window_name,
    window_starts,
)
from sparsetrain.data.schema.column_rule import ColumnRule
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrays import Array
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.system.argument_checks import is_number, require_int
from sparsetrain.system.html import escape, table

Each = Literal["event", "user", "pair", "item"]
TRAIN, VALID, TEST = range(3)
_SCHEMA = Schema(
    categories=("user", "history", "item"), columns={"user": ColumnRule(min_count=1)}
).with_shared({"item": "history"})
AGE = "history_age"


class Split(NamedTuple):
    """Tables of rows: a user, a history, and the items that the user chose next.

    Attributes
    ----------
    train, valid, test : pyarrow.Table
        Columns `user`, `history` (lists) and `item` (lists, of one item in `train`). A held-out row
        has all items that its user chose in that part; its history has the earlier parts. With
        ``ages=True`` a column `history_age` has the seconds from each item of the history to the
        last one; an encoder reads them as weights of `history`.
    whole : pyarrow.Table
        All interactions, from which `encoder` learns users and items.
    """

    train: pa.Table
    valid: pa.Table
    test: pa.Table
    whole: pa.Table

    def __repr__(self) -> str:
        sizes = (f"{name}={len(rows):,}" for name, rows in zip(self._fields, self, strict=True))
        return f"<Split: {', '.join(sizes)} rows>"

    def _repr_html_(self) -> str:
        rows = ((name, len(part)) for name, part in zip(self._fields, self, strict=True))
        columns = ", ".join(self.train.column_names)
        return f"<b>Split: {escape(columns)}</b>\n{table(rows, ('part', 'rows'))}"

    @property
    def schema(self) -> Schema:
        """The schema of all tables; both item columns share one table of values."""
        if AGE not in self.train.column_names:
            return _SCHEMA
        return replace(_SCHEMA, columns={**_SCHEMA.columns, "history": ColumnRule(weights=AGE)})

    def encoder(self, min_count: int = 1) -> Encoder:
        """Return an encoder of all tables; items that occur less often share a row."""
        return Encoder.fit(self.whole, schema=self.schema, min_count=min_count)


@dataclass(frozen=True, eq=False)
class Interactions:
    """Users and their chosen items, grouped by user, in order of time.

    Attributes
    ----------
    user : (N,) integers
        Each interaction's user, numbered in order of first appearance.
    users : pyarrow.Array (U,)
        The users' values.
    item : pyarrow.Array (N,)
    time, rating : (N,) numbers, or None
        Times are seconds since 1970, or the numbers in the data.
    files : tuple of str
        The files that were read.

    Examples
    --------
    >>> log = Interactions.read({"user": [1, 2, 1, 1], "item": [7, 7, 8, 9]})
    >>> log.leave_one_out().test.to_pylist()
    [{'user': 1, 'history': [7, 8], 'item': [9]}]
    """

    user: Array
    users: pa.Array
    item: pa.Array
    time: Array | None = None
    rating: Array | None = None
    files: tuple[str, ...] = ()

    @classmethod
    def read(
        cls,
        data: Any,
        *,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        rating: str | None = None,
    ) -> Interactions:
        """Read a log with one interaction per row.

        Parameters
        ----------
        data : paths, frame or table
            As `open_source` takes them; also RecBole's atomic files (``user_id:token`` as a name)
            and text without names: user and item, then time, or rating and time; or a user and all
            their items in each line, as in LightGCN's and BARS's ``train.txt``.
        user, item, time, rating : str, optional
            Names of the columns; by default names such as user_id, itemId or timestamp. Without
            times, and among equal times, the order of the rows counts.

        Raises
        ------
        DataError
            If a column is missing, a value is null, or a time or a rating is not a number.
        """
        names = {"user": user, "item": item, "time": time, "rating": rating}
        columns, files = read_columns(data, names)
        return replace(cls._sorted(**columns)[0], files=files)

    @classmethod
    def _sorted(cls, user: Any, item: Any, **numbers: Any) -> tuple[Interactions, Any]:
        """Return a log, and the `part` of each interaction in the log's order, if given."""
        coded = user.dictionary_encode()
        codes = coded.indices.to_numpy()
        order = np.lexsort((numbers["time"], codes) if "time" in numbers else (codes,))
        rest = {role: values[order] for role, values in numbers.items()}
        part = rest.pop("part", None)
        return cls(codes[order], coded.dictionary, item.take(pa.array(order)), **rest), part

    def _values(self, name: str) -> pa.Array:
        """The user or item of each interaction."""
        return self.item if name == "item" else self.users.take(pa.array(self.user))

    def __len__(self) -> int:
        return len(self.user)

    def __repr__(self) -> str:
        items = len(self.item.unique())
        return f"<Interactions: {len(self):,} of {len(self.users):,} users, {items:,} items>"

    def table(self) -> pa.Table:
        """Return one row per interaction: user, item and, if known, rating and time."""
        columns = {name: self._values(name) for name in ("user", "item")}
        numbers = {"rating": self.rating, "time": self.time}
        return pa.table(columns | {n: v for n, v in numbers.items() if v is not None})

    def queries(self, *, ages: bool = False) -> pa.Table:
        """Return one row per user with all items as the history, for recommendations.

        With `ages` there is a column `history_age`.
        """
        users, all_of_them = np.arange(len(self.users)), np.ones(len(self), bool)
        history = self._of_users(all_of_them, users)
        nothing = Ragged(history.ids[:0], np.zeros(len(users) + 1, np.int64))
        return self._rows(users, history, nothing, ages).drop_columns("item")

    def leave_one_out(
        self, each: Each = "user", max_length: int | None = None, *, ages: bool = False
    ) -> Split:
        """Test on the last item of each user and validate on the second to last.

        Users with fewer than three interactions are only in the training rows (Kang and McAuley
        2018).

        Parameters
        ----------
        each : {"user", "event", "pair", "item"}
            Training rows. "user": one per user with two or more items, the last item after the
            whole history, for models that learn from every item of the history. "event": one per
            interaction, with the history before it. "pair": one per interaction, with all items of
            its user. "item": one per interaction without a history, for models that read none.
        max_length : int, optional
            Largest number of items in a training row's history; the last ones are kept.
        ages : bool
            Whether to add the column `history_age`.
        """
        left = self._counts - self._places
        part = np.where((self._counts >= 3) & (left <= 2), TEST + 1 - left, TRAIN)
        return self._split(part, each, max_length, ages)

    def split_random(
        self,
        valid: float = 0.1,
        test: float = 0.1,
        *,
        seed: int = 0,
        each: Each = "event",
        max_length: int | None = None,
        ages: bool = False,
    ) -> Split:
        """Hold out shares of each user's interactions at random, rounded down.

        Parameters
        ----------
        valid, test : float
            The shares.
        seed : int
            A different seed gives a different split.
        each, max_length, ages
            As in `leave_one_out`.
        """
        if not all(is_number(share) and 0 <= share < 1 for share in (valid, test)):
            raise ConfigError(
                f"valid is {valid!r} and test {test!r}; both must be at least 0 and below 1"
            )
        chance = np.random.default_rng(require_int("seed", seed, 0)).random(len(self))
        place = np.empty(len(self), np.int64)
        place[np.lexsort((chance, self.user))] = self._places
        tested, held = (np.floor(share * self._counts) for share in (test, test + valid))
        part = np.where(place < tested, TEST, np.where(place < held, VALID, TRAIN))
        return self._split(part, each, max_length, ages)

    def split_time(
        self,
        valid_from: float | str | datetime,
        test_from: float | str | datetime | None = None,
        *,
        each: Each = "event",
        max_length: int | None = None,
        ages: bool = False,
    ) -> Split:
        """Validate on interactions from a time on, and test on interactions from a later time on.

        Parameters
        ----------
        valid_from, test_from : float, datetime or str
            Times as in `data.split_time`; without `test_from` the test table is empty.
        each, max_length, ages
            As in `leave_one_out`.
        """
        if self.time is None:
            raise ConfigError("a split by time needs times: name the time column")
        moments = [timestamp(at) for at in (valid_from, test_from) if at is not None]
        part = sum((self.time >= moment).astype(np.int64) for moment in moments)
        return self._split(part, each, max_length, ages)

    def split_given(
        self,
        valid: Interactions | None = None,
        test: Interactions | None = None,
        *,
        each: Each = "event",
        max_length: int | None = None,
        ages: bool = False,
    ) -> Split:
        """Train on this whole log; validate and test on given logs, as benchmarks do.

        Parameters
        ----------
        valid, test : Interactions, optional
            Logs of new and of known users; histories of known users begin with their training
            items.
        each, max_length, ages
            As in `leave_one_out`.

        Raises
        ------
        DataError
            If the users or items of the logs differ in type.
        """
        logs = {TRAIN: self, **{n: x for n, x in ((VALID, valid), (TEST, test)) if x is not None}}
        columns: dict[str, Any] = {}
        for name in ("user", "item"):
            try:
                columns[name] = pa.concat_arrays(
                    [log._values(name).cast(self._values(name).type) for log in logs.values()]
                )
            except pa.ArrowException as error:
                raise DataError(f"{name}s of the files have different types: {error}") from None
        part = np.repeat([*logs], [*map(len, logs.values())])
        if all(log.time is not None for log in logs.values()):
            columns["time"] = np.concatenate([log.time for log in logs.values()])
        both = self._sorted(**columns, part=part)
        return both[0]._split(both[1], each, max_length, ages)

    def split_windows(
        self, unit: Unit, *, each: Each = "event", max_length: int | None = None, ages: bool = False
    ) -> Iterator[tuple[str, Split]]:
        """Yield a split for each window of time.

        Both `test` and `train` have this window, so that a model can be scored on a window before
        it learns from it. Histories include earlier windows; `whole` has only the window's
        interactions, and `valid` is empty.

        Parameters
        ----------
        unit : {"hour", "day", "week", "month"} or float
            As in `data.split_windows`, which documents the names of windows.
        each, max_length, ages
            As in `leave_one_out`.
        """
        require_unit(unit)
        if self.time is None:
            raise ConfigError("windows need times: name the time column")
        starts, part = np.unique(window_starts(self.time, unit), return_inverse=True)
        for number, start in enumerate(starts):
            now = np.sign(part - number)  # 0: in the window
            length, known = _checked(each, max_length), np.flatnonzero(now <= 0)
            train = self._trained(known, each, length, ages, now[known] == 0)
            none, test = (self._held_out(now, here, ages) for here in (2, 0))
            whole = self._held_out(np.abs(now), 0, ages)
            yield window_name(start, unit), Split(train, none, test, whole)

    @property
    def _counts(self) -> Array:
        """Number of interactions of each interaction's user, (N,)."""
        return np.bincount(self.user)[self.user] if len(self) else np.zeros(0, np.int64)

    @property
    def _places(self) -> Array:
        """Position of each interaction in its user's sequence, (N,), from 0."""
        return np.arange(len(self)) - np.searchsorted(self.user, self.user)

    def _split(self, part: Any, each: Each, max_length: int | None, ages: bool) -> Split:
        length = _checked(each, max_length)
        if not (part == TRAIN).any():
            raise DataError("the split leaves no interaction to train on: hold out fewer")
        if ages and self.time is None:
            raise ConfigError("ages need times: name the time column")
        return Split(
            self._trained(np.flatnonzero(part == TRAIN), each, length, ages),
            self._held_out(part, VALID, ages),
            self._held_out(part, TEST, ages),
            self._held_out(np.full(len(self), TRAIN), TRAIN, ages),
        )

    def _trained(
        self,
        kept: Array,
        each: Each,
        max_length: int | None,
        ages: bool,
        chosen: Array | None = None,
    ) -> pa.Table:
        """Return a row for each interaction at `kept`, with its user's earlier ones as history.

        `chosen` (len(kept),) bool selects the interactions that get a row, by default all.
        """
        user = self.user[kept]
        at, begin = np.arange(len(user)), np.searchsorted(user, user)
        if each == "user":
            last = np.r_[user[1:] != user[:-1], True]
            at = np.flatnonzero(last & (at > begin))
        at = at if chosen is None else at[chosen[at]]
        begin = begin[at]
        end = np.searchsorted(user, user[at], side="right") if each == "pair" else at
        begin = at if each == "item" else begin
        if max_length is not None:
            begin = np.maximum(begin, end - max_length)
        history = one_each(kept).between(begin, end)
        return self._rows(user[at], history, one_each(kept[at]), ages)

    def _held_out(self, part: Array, number: int, ages: bool) -> pa.Table:
        """Return a row for each user with items in a part; earlier parts are the history."""
        own = part == number
        users = np.unique(self.user[own])
        history, item = (self._of_users(chosen, users) for chosen in (part < number, own))
        return self._rows(users, history, item, ages)

    def _of_users(self, chosen: Array, users: Array) -> Ragged:
        """Return the positions of each user's chosen interactions."""
        places = np.flatnonzero(chosen & np.isin(self.user, users))
        ends = np.searchsorted(self.user[places], users, side="right")
        return Ragged(places, np.r_[0, ends])

    def _rows(self, user: Array, history: Ragged, item: Ragged, ages: bool) -> pa.Table:
        """Return a table of rows with lists of the interactions at these positions."""
        columns = {"user": self.users.take(pa.array(user))}
        for name, places in {"history": history, "item": item}.items():
            columns[name] = places.as_lists(self.item.take(pa.array(places.ids)))
        if ages:
            assert self.time is not None
            times = self.time[history.ids]
            columns[AGE] = history.as_lists(times[history.offsets[history.rows() + 1] - 1] - times)
        return pa.table(columns)


def _checked(each: Each, max_length: int | None) -> int | None:
    """Check these arguments of `Interactions.leave_one_out`, and return `max_length`."""
    if each not in (kinds := get_args(Each)):
        raise ConfigError(f"each is {each!r}; it must be {' or '.join(map(repr, kinds))}")
    return None if max_length is None else require_int("max_length", max_length)
