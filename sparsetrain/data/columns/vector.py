# SPDX-License-Identifier: Apache-2.0
"""Vector columns: lists of one length, such as embeddings of another model, as dense inputs.

Numbers go to the model as they are, in float32, after the other dense inputs and their flags. A
null row, or an empty list, is zeros. Cost: a copy of each piece.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.bags import read_values
from sparsetrain.data.columns.number import plain_floats
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location


def read_vectors(array: Any, width: int, location: Location) -> tuple[Array, Array]:
    """Return the numbers (n, width) float32 of a vector column, and which rows have none (n,)."""
    if pa.types.is_null(array.type):
        return np.zeros((len(array), width), np.float32), np.ones(len(array), bool)

    def read(values: Any, here: Location) -> Array:
        return plain_floats(values, here, "in a vector; a row without one is null as a whole")

    numbers, lengths = read_values(array, read, location)
    missing = lengths == 0
    location.refuse(
        ~missing & (lengths != width),
        lambda row: f"a vector of {lengths[row]} numbers, where the schema says {width}",
    )
    if not missing.any():
        return numbers.reshape(-1, width), missing
    vectors = np.zeros((len(array), width), np.float32)
    vectors[~missing] = numbers.reshape(-1, width)
    return vectors, missing
