# SPDX-License-Identifier: Apache-2.0
"""Splits of a source that share no row: in two at random or by time, or into windows of time.

All keep the row numbers of the files. Nothing is copied: each reads the parts that may have its
rows, and drops other rows. A random split depends on the seed and on a row's position; a split by
time on the time column alone.

A time is a number, such as Avazu's YYMMDDHH or seconds, or a date or timestamp (as text in ISO
8601). Dates and timestamps are compared as seconds since 1970, in UTC if they state no zone. Days
begin in UTC, weeks on Mondays.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from sparsetrain.data.read.open_source import open_rows
from sparsetrain.data.read.source import Part, Pieces, Source, keep_rows
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_values import NanRule, exact_integers, read_numbers
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.moments import to_microseconds
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.system.argument_checks import is_number, require_int

# (record batch, its location, number of earlier rows in the part) -> mask of the rows to keep.
Rule = Callable[[Any, Location, int], Array]
Unit = Literal["hour", "day", "week", "month"] | float
_CODES = {"hour": "h", "day": "D", "week": "D", "month": "M"}  # NumPy's units
_DAY = 86_400
_MONDAY = 4 * _DAY  # 1970-01-01 was a Thursday
_YEARS = 9999 * 366 * _DAY  # no time beyond this has a date


def split_share(
    source: Any, share: float, *, seed: int = 0, schema: Schema | str | Path | None = None
) -> tuple[Source, Source]:
    """Split at random: the second source gets about `share` of the rows.

    Parameters
    ----------
    source : anything `open_source` takes, except batches
    share : float
        Between 0 and 1.
    seed : int
        A different seed gives a different split.
    schema : Schema or path, optional
        As `open_source` takes it.

    Returns
    -------
    tuple of Source
        The remaining rows, then the share.

    Raises
    ------
    ConfigError
        If the share is not between 0 and 1.
    DataError
        If one side has no rows.

    Examples
    --------
    >>> train, valid = split_share({"I1": range(1000), "C1": range(1000)}, 0.25)
    >>> train.num_rows + valid.num_rows, 200 < valid.num_rows < 300
    (1000, True)
    """
    require_int("seed", seed, 0)
    if not (is_number(share) and 0 < share < 1):
        raise ConfigError(f"share is {share!r:.60}; it must be a number between 0 and 1")
    opened = open_rows(source, schema)
    halves = []
    for inside in (False, True):
        parts = [
            _filter_part(part, partial(_keep_by_hash, index, seed, share, inside))
            for index, part in enumerate(opened.parts)
        ]
        if all(part.num_rows == 0 for part in parts):
            raise DataError(
                f"{opened.name}: a share of {share} of {opened.num_rows} rows leaves one part of "
                "the split without rows; choose a different share"
            )
        halves.append(replace(opened, parts=tuple(parts)))
    return halves[0], halves[1]


def split_time(
    source: Any,
    column: str,
    at: float | str | datetime,
    *,
    schema: Schema | str | Path | None = None,
) -> tuple[Source, Source]:
    """Split by a time column: the second source gets the rows at `at` and later.

    Row groups that are on one side of the split, by their statistics, are not read to split them.

    Parameters
    ----------
    source : anything `open_source` takes, except batches
    column : str
        A column of numbers, such as Avazu's `hour`, or of dates or timestamps.
    at : float, datetime or str
        The first time of the second source; as text such as ``2014-10-30T12:00``.
    schema : Schema or path, optional
        As `open_source` takes it.

    Returns
    -------
    tuple of Source
        Rows before `at`, and rows from `at` on.

    Raises
    ------
    ConfigError
        If `at` is text that is not a time.
    DataError
        If the column or one of its values is missing, or one side has no rows.
    """
    moment = timestamp(at)
    opened = open_rows(source, replace(Schema.read(schema), time=column))
    halves = []
    for later in (False, True):
        parts = [half for part in opened.parts for half in of_part(part, column, moment, later)]
        if not any(_has_rows(part, column) for part in parts):
            raise DataError(f"{opened.name}: no row has {column} {'>=' if later else '<'} {at}")
        halves.append(replace(opened, parts=tuple(parts)))
    return halves[0], halves[1]


def split_windows(
    source: Any, column: str, unit: Unit, *, schema: Schema | str | Path | None = None
) -> list[tuple[str, Source]]:
    """Split by windows of a time column, in order of time; windows without rows are left out.

    Parameters
    ----------
    source : anything `open_source` takes, except batches
    column : str
        A column of dates, timestamps or numbers.
    unit : {"hour", "day", "week", "month"} or float
        A named unit reads numbers as seconds since 1970. A number is a span in the column's own
        units, such as 100 for days of Avazu's YYMMDDHH.
    schema : Schema or path, optional
        As `open_source` takes it.

    Returns
    -------
    list of (str, Source)
        The beginning of each window, such as ``"2014-10-21"``, and its rows.

    Raises
    ------
    ConfigError
        If `unit` is not one of these.
    DataError
        If the column or one of its values is missing, or a number of seconds has no date.

    Examples
    --------
    >>> rows = {"hour": [14102100, 14102123, 14102207], "C1": [1, 2, 3]}
    >>> parts = split_windows(rows, "hour", 100)
    >>> [(name, part.num_rows) for name, part in parts]
    [('14102100', 2), ('14102200', 1)]
    """
    require_unit(unit)
    opened = open_rows(source, replace(Schema.read(schema), time=column))
    starts: set[float] = set()
    for part in opened.parts:
        if part.is_stream:
            raise DataError(f"{opened.name}: a stream is read once; windows need a file or a frame")
        require_times(part, column)
        for location, piece in part.pieces([column]):
            times = read_times(piece.column(column), location.of_column(column))
            starts.update(window_starts(times, unit, location.of_column(column)).tolist())
    found = []
    for start, end in pairwise([*sorted(starts), math.inf]):
        later = (half for part in opened.parts for half in of_part(part, column, start, True))
        parts = (half for part in later for half in of_part(part, column, end, False))
        found.append((window_name(start, unit), replace(opened, parts=tuple(parts))))
    return found


def _has_rows(part: Part, column: str) -> bool:
    return any(True for _ in part.pieces([column])) if part.num_rows is None else part.num_rows > 0


def timestamp(at: float | str | datetime) -> float:
    """Return a number as a float, and a date or timestamp as seconds since 1970."""
    if isinstance(at, (int, float)):
        return max(min(at, sys.float_info.max), -sys.float_info.max)
    try:
        point = datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        raise ConfigError(
            f"{at!r} is not a moment; give a number or one such as 2014-10-30"
        ) from None
    return (point if point.tzinfo else point.replace(tzinfo=timezone.utc)).timestamp()


def of_part(part: Part, column: str, at: float, later: bool) -> Iterator[Part]:
    """Yield a part with the rows on one side of `at`, if there are any."""
    require_times(part, column)
    side = _side(part, column, at)
    if side is None:
        half = _filter_part(part, partial(_keep_by_time, column, at, later), column)
        if half.num_rows != 0:
            yield half
    elif side is later:
        yield part


def require_times(part: Part, column: str) -> None:
    """Raise `DataError` if a part lacks the time column."""
    if column not in part.schema.names:
        hint = "; `convert` leaves it out: split the raw data" if part.is_converted else ""
        raise Location(part.location.name, column=column).error(f"the time column is missing{hint}")


def _side(part: Part, column: str, at: float) -> bool | None:
    """Return True if all rows of a part are later, False if all are earlier; None if unknown."""
    known = part.range_of(column)
    if known is None or not all(isinstance(value, (int, float)) for value in known):
        return None
    return True if known[0] >= at else False if known[1] < at else None


def _filter_part(part: Part, rule: Rule, column: str | None = None) -> Part:
    """Return a part with the rows that a rule keeps; the rule may read a column.

    The rows are counted once. Statistics of the whole part, such as its largest id, are dropped.
    """
    half = replace(part, read=partial(_read, part, rule, column), ranges=None)
    if part.num_rows is None:
        return half
    if column is None:
        return replace(half, num_rows=int(rule(range(part.num_rows), part.location, 0).sum()))
    return replace(half, num_rows=sum(piece.num_rows for _, piece in half.pieces([column])))


def _read(
    part: Part, rule: Rule, column: str | None, names: Sequence[str], coded: Sequence[str]
) -> Pieces:
    needed = list(dict.fromkeys(names if column is None else [*names, column]))
    before = 0
    for location, piece in part.pieces(needed):
        keep = rule(piece, location, before)
        before += len(piece)
        yield keep_rows(location, piece.select(list(names)), keep)


def _keep_by_hash(
    index: int, seed: int, share: float, inside: bool, piece: Any, location: Location, before: int
) -> Array:
    rows = np.arange(before, before + len(piece), dtype=np.uint64)
    start = ((index << 40) + seed * 0x9E3779B97F4A7C15) % 2**64
    x = rows + np.uint64(start)
    # The finalizer of SplitMix64: every bit of a row's number affects every bit of the result.
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    chosen = (x >> np.uint64(11)).astype(np.float64) * 2.0**-53 < share
    return chosen if inside else ~chosen


def _keep_by_time(
    column: str, at: float, later: bool, piece: pa.RecordBatch, location: Location, before: int
) -> Array:
    values = read_times(piece.column(column), location.of_column(column))
    if values.dtype.kind != "f" and math.isfinite(at):
        at = math.ceil(at)  # compared with a float, the integers would be rounded
    return (values >= at) == later


def read_times(array: Any, location: Location) -> Array:
    """Return (n,) integers or float64, seconds for dates and timestamps; none may be missing."""
    moments = to_microseconds(array, location)
    if moments is None:
        values, missing = exact_integers(array) or read_numbers(array, NanRule(), location)
    else:
        values, missing = read_numbers(moments, NanRule(), location)
        values = values / 1e6
    location.refuse(missing, lambda row: "the time is null; drop the row")
    return values


def window_starts(times: Array, unit: Unit, location: Location | None = None) -> Array:
    """Return the beginning of the window of each time, (n,) float64.

    Raises
    ------
    DataError
        If a time has no date and the unit needs one; the message names the row in `location`.
    """
    if not isinstance(unit, str):
        return np.floor(times / unit) * unit
    location = location or Location("table")
    dated = np.abs(times) < _YEARS
    location.refuse(~dated, lambda row: f"{times[row]} is not a date in seconds since 1970")
    if unit == "week":
        return np.floor((times - _MONDAY) / (7 * _DAY)) * 7 * _DAY + _MONDAY
    seconds = np.floor(times).astype("datetime64[s]")
    return seconds.astype(f"datetime64[{_CODES[unit]}]").astype(seconds.dtype).astype(np.int64)


def window_name(start: float, unit: Unit) -> str:
    """Return the beginning of a window as a date, or a number."""
    if not isinstance(unit, str):
        return f"{start:.15g}"
    return str(np.datetime64(int(start), "s").astype(f"datetime64[{_CODES[unit]}]"))


def require_unit(unit: Any) -> None:
    """Raise `ConfigError` unless `unit` is one of `Unit`."""
    if not (unit in _CODES if isinstance(unit, str) else is_number(unit) and unit > 0):
        raise ConfigError(
            f"window is {unit!r:.60}; it must be {', '.join(map(repr, _CODES))} or a number above 0"
        )
