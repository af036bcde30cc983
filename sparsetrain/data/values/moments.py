# SPDX-License-Identifier: Apache-2.0
"""Points in time, as microseconds since 1970."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.arrow_types import fill_nulls, require_utf8
from sparsetrain.data.values.location import Location

SHOWN = 40  # most characters of a bad value in a message
_MOMENT = pa.timestamp("us")


# Microseconds per unit; nanoseconds, which are shorter, are divided instead.
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1, "date32[day]": 86_400_000_000, "date64[ms]": 1_000}
_LARGEST = np.iinfo(np.int64).max


def to_microseconds(array: Any, location: Location) -> Any | None:
    """Return an Arrow array of dates or timestamps as int64 microseconds since 1970, else None.

    Text in ISO 8601 counts as timestamps; without a zone, times are in UTC. Anything else, such as
    Avazu's YYMMDDHH, counts as numbers. The first value of a text column decides which it holds.
    """
    if arrow_types.kind_of(array.type) == arrow_types.TEXT:
        return _from_text(array, location)
    array = arrow_types.as_plain(array)
    if arrow_types.kind_of(array.type) == arrow_types.MOMENT:
        return _from_units(array, location)
    if pt.is_temporal(array.type):
        raise location.error(f"values of type {array.type} are not points in time")
    return None


def _from_units(array: Any, location: Location) -> Any:
    values, missing = fill_nulls(array.cast(pa.int32() if pt.is_date32(array.type) else pa.int64()))
    name = array.type.unit if pt.is_timestamp(array.type) else str(array.type)
    if name == "ns":
        return pa.array(values // 1_000, pa.int64(), mask=missing)
    most = _LARGEST // _UNITS[name]
    location.refuse(
        (values > most) | (values < -most),
        lambda row: f"the time {values[row]} ({name}) is beyond the year 294246; give a null",
    )
    return pa.array(values.astype(np.int64) * _UNITS[name], pa.int64(), mask=missing)


_WITH_ZONE = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"


def _from_text(array: Any, location: Location) -> Any | None:
    plain = arrow_types.as_plain(array)
    require_utf8(plain, location, bytes_too=True)
    text = plain.cast(pa.large_string())
    text = pc.if_else(pc.not_equal(pc.binary_length(text), 0), text, None)
    if not _is_moment(text.drop_null()[:1]):
        return None
    with suppress(pa.ArrowInvalid):
        return _parsed_moments(text)
    row, value = next(
        (i, v) for i, v in enumerate(text) if v.is_valid and not _is_moment(text[i : i + 1])
    )
    raise location.error(
        f"{value.as_py()[:SHOWN]!r} is not a time in ISO 8601, but the first value is", row
    )


def _parsed_moments(text: Any) -> Any:
    zoned = pc.match_substring_regex(text, _WITH_ZONE)
    with_zone, without = (
        pc.if_else(chosen, text, None).cast(type_).cast(pa.int64())
        for chosen, type_ in ((zoned, pa.timestamp("us", "UTC")), (pc.invert(zoned), _MOMENT))
    )
    return pc.coalesce(with_zone, without)


def _is_moment(text: Any) -> bool:
    try:
        return _parsed_moments(text) is not None
    except pa.ArrowInvalid:
        return False
