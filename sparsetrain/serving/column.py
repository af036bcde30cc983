# SPDX-License-Identifier: Apache-2.0
"""`Column`: one column of a request to an exported model, from arrays or Python values."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from typing import Any, NamedTuple

import numpy as np

from sparsetrain.errors import DataError, shown

INT64, DOUBLE, TEXT = range(3)


class Column(NamedTuple):
    """One column of a request as arrays for the C library, from NumPy or Python's `array`.

    Attributes
    ----------
    kind : {INT64, DOUBLE, TEXT}
    values : (n,) int64 or float64, or (bytes,) uint8 of all texts
    offsets : (n + 1,) int64 or None
        Start of each text, and the end of the last.
    missing : (n,) uint8 or None
    edges : (rows + 1,) int64 or None
        For lists, the position of each row's first value, and the end of the last row.
    """

    kind: int
    values: Any
    offsets: Any = None
    missing: Any = None
    edges: Any = None

    @property
    def rows(self) -> int:
        """Number of rows in the request."""
        edges = self.offsets if self.edges is None else self.edges
        return len(self.values) if edges is None else len(edges) - 1

    def in_lists(self, edges: Any) -> Column:
        """Return a column of lists of these values; `edges` begin and end them."""
        return self._replace(edges=edges)

    def as_arrow(self) -> Any:
        """Return the column as an Arrow array."""
        import pyarrow as pa

        if self.edges is not None:
            values = self._replace(edges=None).as_arrow()
            return pa.LargeListArray.from_arrays(pa.array(np.asarray(self.edges)), values)
        missing = None if self.missing is None else np.asarray(self.missing).view(bool)
        if missing is not None and missing.all():
            return pa.nulls(self.rows)  # the null type, which every rule accepts
        if self.kind != TEXT:
            dtype = np.float64 if self.kind == DOUBLE else np.int64
            return pa.array(np.asarray(self.values, dtype), mask=missing)
        valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
        buffers = [valid, pa.py_buffer(self.offsets), pa.py_buffer(self.values)]
        return pa.Array.from_buffers(pa.large_binary(), self.rows, buffers)


def all_missing(rows: int) -> Column:
    """Return a column of missing values."""
    return Column(INT64, array("q", bytes(8 * rows)), missing=array("B", b"\1" * rows))


def as_seconds(column: Column, name: str) -> Column:
    """Convert ISO 8601 text to seconds since 1970, by Arrow; return anything else unchanged."""
    if column.kind != TEXT or column.edges is not None:
        return column
    from sparsetrain.data.values.location import Location
    from sparsetrain.data.values.moments import to_microseconds

    moments = to_microseconds(column.as_arrow(), Location("request", column=name))
    return column if moments is None else seconds(moments)


def seconds(moments: Any) -> Column:
    """Return an Arrow array of microseconds as a column of seconds."""
    from sparsetrain.data.values.arrow_types import fill_nulls

    microseconds, missing = fill_nulls(moments)
    return Column(INT64, microseconds // 1_000_000, missing=missing.astype(np.uint8))


def bad_column(name: str, reason: str) -> DataError:
    """Make an error about a column, for the caller to raise."""
    return DataError(f"column {shown(name)}: {reason}")


def as_column(values: Any, name: str) -> Column:
    """Return an array or a list as a column.

    Raises
    ------
    DataError
        If `values` holds unsupported values; the message names the column.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "iufb":
        return _from_array(values, name)
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        if np.isnat(values).any():
            raise bad_column(name, "it holds NaT; give seconds since 1970, and None if missing")
        return _from_array(values.astype("datetime64[s]").astype(np.int64), name)
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise bad_column(name, "it is a single value, not a column; give a list")
    kinds = set(map(type, values))
    return (
        _from_values(values, kinds, name) if kinds.isdisjoint(_LISTS) else _from_lists(values, name)
    )


def _from_lists(values: Sequence[Any], name: str) -> Column:
    lists = [() if value is None else value for value in values]
    if not all(isinstance(value, (list, tuple, np.ndarray)) for value in lists):
        raise bad_column(name, "some rows are lists, and some are not")
    inside = [value for bag in lists for value in bag]
    if not _LISTS.isdisjoint(map(type, inside)):
        raise bad_column(name, "it holds lists of lists")
    flat = as_column(inside, name)
    return flat.in_lists(_edges(map(len, lists)))


def _from_array(values: np.ndarray, name: str) -> Column:
    if values.ndim != 1:
        raise bad_column(name, f"it has {values.ndim} axes, not one")
    if values.dtype.kind == "f":
        return Column(DOUBLE, np.ascontiguousarray(values, np.float64))
    # A uint64 is looked up by its bits as int64.
    return Column(INT64, np.ascontiguousarray(values.astype(np.int64)))


_INTEGERS, _NUMBERS, _TEXTS = {int, bool}, {int, bool, float}, {str, bytes}
_LISTS = {list, tuple, np.ndarray}


def _from_values(values: Sequence[Any], kinds: set[type], name: str) -> Column:
    """Return Python numbers or texts as a column; None is a missing value."""
    missing = None
    if type(None) in kinds:
        kinds.remove(type(None))
        missing = _array("B", (value is None for value in values))
        blank: Any = "" if kinds & _TEXTS else 0
        values = [blank if value is None else value for value in values]
    if kinds <= _INTEGERS:
        return Column(INT64, _integers(values, name), None, missing)
    if kinds <= _NUMBERS:
        try:
            return Column(DOUBLE, _array("d", values), None, missing)
        except OverflowError:
            raise bad_column(name, "a number exceeds 64 bits") from None
    if kinds <= _TEXTS:
        joined = "".join(values) if bytes not in kinds else ""
        if joined and joined.isascii():
            return Column(TEXT, array("B", joined.encode()), _edges(map(len, values)), missing)
        texts = [_utf8(value, name) for value in values]
        return Column(TEXT, array("B", b"".join(texts) or b"\0"), _edges(map(len, texts)), missing)
    names = sorted(kind.__name__ for kind in kinds)
    raise bad_column(name, f"it holds {' and '.join(names)}; give only numbers or only texts")


def _utf8(text: str | bytes, name: str) -> bytes:
    try:
        return text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError:
        raise bad_column(name, f"{text!r:.40} cannot be encoded as UTF-8") from None


def _integers(values: Sequence[int], name: str) -> Any:
    """Return integers (n,) int64; uint64 from 2**63 on, such as 64-bit hashes, by their bits."""
    for code in "qQ":
        try:
            return _array(code, values)
        except OverflowError:
            continue
    raise bad_column(name, "an integer exceeds 64 bits; pass it as text")


def _edges(lengths: Iterable[int]) -> Any:
    return _array("q", accumulate(lengths, initial=0))


def _array(code: str, values: Iterable[Any]) -> Any:
    """Fill an array in parts, so that other threads can run in between."""
    made, rest = array(code), iter(values)
    while part := array(code, islice(rest, 1 << 14)):
        made.extend(part)
    return made
