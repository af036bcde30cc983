# SPDX-License-Identifier: Apache-2.0
"""Detection of lists in a sample of a column: vectors of numbers, and text that holds lists.

To tell lists from free text, codes and addresses, many rows must have the separator, and the values
between separators must rarely have blanks, and recur in several texts and at several positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparsetrain.data.column_sample import Pieces
from sparsetrain.data.dense.vector import Vector
from sparsetrain.data.derived.separator import Separator
from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import require_utf8
from sparsetrain.data.values.location import Location

_SEPARATORS = ("|", "^", ";")
_SHARE = 0.25  # least share of rows with several values
_TEXTS = 3  # least average number of occurrences of a value
# Of the distinct values that begin lists and those at later positions: least share of the smaller
# set that is also in the other.
_PLACES = 0.3
_ODD = 0.1  # largest share of values that match `_IS_ODD`
# Signs of sentences, titles, objects or coordinates.
_IS_ODD = r"\s|[{}]|^-?[0-9]*\.[0-9]+$"


def vector_width(pieces: Pieces) -> int:
    """Return how many numbers each list has.

    Raises
    ------
    RowError
        If lengths differ, or a value is not a finite number.
    """
    for location, piece in pieces:
        Vector("").check_type(piece.type, location)
    found = [piece for _, piece in pieces if arrow_types.is_bag(piece.type)]
    each = (pc.unique(pc.list_value_length(piece)).to_pylist() for piece in found)
    lengths = {length for lengths in each for length in lengths}
    lengths -= {None, 0}
    location, first = pieces[0]
    if len(lengths) != 1:
        words = (
            f" of {min(lengths)} to {max(lengths)} numbers" if lengths else ", all of them empty"
        )
        raise location.error(f"{first.type}{words}")
    (width,) = lengths
    for location, piece in pieces:
        Vector("", length=width).read(piece, location)
    return int(width)


def separator_of(pieces: Pieces) -> str | None:
    """Return the separator of lists in text; None if the text has no lists."""
    texts, times = _distinct(pieces)
    if not len(texts):
        return None
    brackets = pc.match_substring_regex(texts, r"^\s*\[.*\]\s*$").to_numpy(zero_copy_only=False)
    if brackets.all():
        return "," if _is_list(texts, times, ",", True) else None
    shares = {mark: times @ _holds(texts, mark) for mark in _SEPARATORS}
    mark = max(shares, key=shares.__getitem__)
    return mark if shares[mark] and _is_list(texts, times, mark, False) else None


def _holds(texts: Any, mark: str) -> Array:
    found: Array = pc.match_substring(texts, mark).to_numpy(zero_copy_only=False)
    return found


def _distinct(pieces: Pieces) -> tuple[Any, Array]:
    """Return the distinct non-empty texts of all pieces, and their counts (n,)."""
    plain = []
    for location, piece in pieces:
        if arrow_types.kind_of(piece.type) == arrow_types.TEXT:
            require_utf8(piece, location)
            plain.append(arrow_types.as_plain(piece))
    try:
        texts = pa.chunked_array([p.cast(pa.large_string()) for p in plain], pa.large_string())
    except pa.ArrowInvalid:  # bytes that are not text
        texts = pa.chunked_array([], pa.large_string())
    counts = texts.filter(pc.not_equal(texts, "")).value_counts()
    return counts.field("values"), counts.field("counts").to_numpy()


def _is_list(texts: Any, times: Array, mark: str, bracketed: bool) -> bool:
    lists = Separator("", mark).make((texts, Location("")))
    lengths = pc.list_value_length(lists).to_numpy()
    values = lists.flatten()
    coded = pc.dictionary_encode(values)
    codes, distinct = coded.indices.to_numpy(), coded.dictionary
    if times @ (lengths > 1) < _SHARE * times.sum() or len(values) < _TEXTS * len(distinct):
        return False
    odd = pc.match_substring_regex(values, _IS_ODD).to_numpy(zero_copy_only=False)
    numbers = pc.match_substring_regex(distinct, "^-?[0-9]+$").to_numpy(zero_copy_only=False)
    varied = len(np.unique(lengths[lengths > 0])) > 1
    if odd.mean() > _ODD or not (varied or (bracketed and not numbers.all())):
        return False
    several = np.repeat(lengths, lengths) > 1
    starts = np.zeros(len(codes), bool)
    starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
    first, later = np.unique(codes[several & starts]), np.unique(codes[several & ~starts])
    both = np.intersect1d(first, later)
    return len(both) >= _PLACES * min(len(first), len(later))
