# SPDX-License-Identifier: Apache-2.0
"""The identity of a category value: a 64-bit number, or text that is no such number, or missing.

Two files that store the same Criteo value differently must give the same key. So text of exactly 8
lower-case hex digits *is* the number it spells, and an int32 is taken as the unsigned 32-bit hash
that it holds. Any other text keeps its bytes, so nothing is ever merged within one column.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparsetrain.data.values import kinds
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.filled import filled
from sparsetrain.data.values.missing import NanRule
from sparsetrain.data.values.numeric import EXACT
from sparsetrain.data.values.place import Place
from sparsetrain.data.values.text import as_bytes, hex_numbers, lengths


class Keys(NamedTuple):
    """The keys of one column's n values.

    Attributes
    ----------
    numbers : (n,) int64
        The key where it is a number, 0 elsewhere.
    missing : (n,) bool
        Null or empty text.
    is_text : (n,) bool
        Text that is no number.
    texts : pyarrow binary array
        The values where `is_text`, in order.
    """

    numbers: Array
    missing: Array
    is_text: Array
    texts: Any


def split_keys(array: Any, nan: NanRule, place: Place) -> Keys:
    """Return the keys of a plain (not dictionary) Arrow array.

    Raises
    ------
    DataError
        If a float is no whole number, or NaN where NaN is an error.
    """
    return _BY_KIND[kinds.kind_of(array.type) or kinds.EMPTY](array, nan, place)


def _all_numbers(numbers: Array, missing: Array) -> Keys:
    return Keys(numbers, missing, np.zeros(len(numbers), dtype=bool), pa.array([], pa.binary()))


def _from_integers(array: Any, nan: NanRule, place: Place) -> Keys:
    values, missing = filled(array)
    if values.dtype == np.int32:
        values = values.view(np.uint32)
    return _all_numbers(values.astype(np.int64), missing)


def _from_floats(array: Any, nan: NanRule, place: Place) -> Keys:
    values, missing = nan.split(array, place)
    odd = (values != np.trunc(values)) | (np.abs(values) >= EXACT)
    if odd.any():
        row = int(np.argmax(odd))
        raise place.error(
            f"category {values[row]} is no whole number below 2**53; store it as text", row
        )
    return _all_numbers(values.astype(np.int64), missing)


def _from_text(array: Any, nan: NanRule, place: Place) -> Keys:
    array = as_bytes(array)
    sizes = lengths(array)
    numbers, is_hex = hex_numbers(array, sizes)
    missing = sizes == 0
    is_text = ~(is_hex | missing)
    texts = array.filter(pa.array(is_text)) if is_text.any() else pa.array([], pa.binary())
    return Keys(numbers, missing, is_text, texts)


def _from_nulls(array: Any, nan: NanRule, place: Place) -> Keys:
    return _all_numbers(np.zeros(len(array), dtype=np.int64), np.ones(len(array), dtype=bool))


_BY_KIND = {
    kinds.INTEGER: _from_integers,
    kinds.FLOAT: _from_floats,
    kinds.TEXT: _from_text,
    kinds.EMPTY: _from_nulls,
}
