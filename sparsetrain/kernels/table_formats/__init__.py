# SPDX-License-Identifier: Apache-2.0
"""Storage formats of tables: plain, half and int8 with stochastic rounding, and bytes.

A new format is a file that defines a `TableFormat`, and an entry in `FORMATS`.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, TypeAlias

from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats.format import TableFormat as TableFormat
from sparsetrain.kernels.table_formats.half import HALVES
from sparsetrain.kernels.table_formats.int8 import INT8 as INT8
from sparsetrain.kernels.table_formats.uint8 import UINT8 as UINT8

TableDtype: TypeAlias = Literal["float32", "bfloat16", "float16", "int8", "uint8"]

FORMATS = {
    form.dtype: form for form in (TableFormat.plain("float32"), *HALVES.values(), INT8, UINT8)
}


@cache
def format_of(dtype: str) -> TableFormat:
    """Return the format of tables of a dtype; arrays of other dtypes are stored as computed."""
    return FORMATS.get(dtype) or TableFormat.plain(dtype)


def check_table_dtype(dtype: object, place: str) -> None:
    """Refuse dtypes in which no table can be stored.

    Raises
    ------
    ConfigError
        If there is no such format; the message names the place, the value and the supported dtypes.
    """
    if dtype not in tuple(FORMATS):
        known = ", ".join(repr(form.dtype) for form in FORMATS.values() if form.trainable)
        raise ConfigError(f"{place}: table_dtype is one of {known}, not {dtype!r}")
