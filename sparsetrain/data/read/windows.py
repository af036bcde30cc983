# SPDX-License-Identifier: Apache-2.0
"""Windows of time: the rows of each day, week, month or span of a time column.

Times are as in `split_time`. Days begin in UTC, weeks on Mondays. Nothing is copied: a window reads
the parts that may have its rows, and drops other rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparsetrain.data.read.open_source import open_rows
from sparsetrain.data.read.source import Source
from sparsetrain.data.read.split import of_part, read_times, require_times
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.system.argument_checks import is_number

Unit = Literal["hour", "day", "week", "month"] | float
_CODES = {"hour": "h", "day": "D", "week": "D", "month": "M"}  # NumPy's units
_DAY = 86_400
_MONDAY = 4 * _DAY  # 1970-01-01 was a Thursday
_YEARS = 9999 * 366 * _DAY  # no time beyond this has a date


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
