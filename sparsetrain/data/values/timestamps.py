# SPDX-License-Identifier: Apache-2.0
"""Dates and timestamps as microseconds since 1970, in UTC where no zone is stated.

Accepts Arrow dates and timestamps, and text in ISO 8601, such as `2014-10-30 12:00:00`. Anything
else, such as Avazu's YYMMDDHH, counts as a number.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.location import Location

_MOMENT = pa.timestamp("us")


def to_microseconds(array: Any, location: Location) -> Any | None:
    """Return an Arrow array of points in time as int64 microseconds; None if it holds numbers."""
    if arrow_types.kind_of(array.type) == arrow_types.TEXT:
        return _from_text(array)
    if not pt.is_temporal(array.type):
        return None
    try:
        return array.cast(_MOMENT, safe=False).cast(pa.int64())
    except pa.ArrowException:
        raise location.error(f"type {array.type} is no point in time") from None


def _from_text(array: Any) -> Any | None:
    plain = array.dictionary_decode() if pt.is_dictionary(array.type) else array
    for type_ in (_MOMENT, pa.timestamp("us", "UTC")):  # the second takes texts that name a zone
        try:
            text = plain.cast(pa.large_string())
            there = pc.not_equal(pc.binary_length(text), 0)
            return pc.if_else(there, text, None).cast(type_).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
    return None
