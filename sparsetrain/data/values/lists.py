# SPDX-License-Identifier: Apache-2.0
"""Columns of lists: the values of all, and the number in each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pyarrow.compute as pc

from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import is_bag
from sparsetrain.data.values.location import Location, RowError

Read = TypeVar("Read")


def read_values(
    array: Any, read: Callable[[Any, Location], Read], location: Location
) -> tuple[Read, Array]:
    """Return the result of `read` on the flat values of all bags, and the number in each row.

    An error of `read` about a value gets the row of its bag.
    """
    values, lengths = flat(array)
    if values is array:
        return read(array, location), lengths
    try:
        numbers = np.repeat(location.row_numbers(len(lengths)), lengths)
        return read(values, location.numbered(numbers)), lengths
    except RowError as error:
        if error.row is not None:
            error.row = int(np.searchsorted(np.cumsum(lengths), error.row, side="right"))
        raise


def flat(array: Any) -> tuple[Any, Array]:
    """Return the concatenated values of all bags, and the size of each."""
    if not is_bag(array.type):
        return array, np.ones(len(array), dtype=np.int64)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy().astype(np.int64)
    return array.flatten(), lengths
