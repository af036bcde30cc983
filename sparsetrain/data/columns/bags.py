# SPDX-License-Identifier: Apache-2.0
"""Bags: list columns, read and truncated.

A null list is an empty bag, and so is a null in a column of plain values. A null inside a list is a
missing value, and gets the column's id for missing values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparsetrain.data.ragged import Ragged, offsets_of
from sparsetrain.data.read.source import Part, Pieces
from sparsetrain.data.schema.column_rule import ColumnRule
from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import flat, read_values
from sparsetrain.data.values.arrow_values import NanRule, read_numbers, texts_of
from sparsetrain.data.values.location import Location


def read_bags(
    array: Any,
    factors: Any | None,
    rule: ColumnRule,
    encode: Callable[[Any, Location], Array],
    location: Location,
) -> Ragged:
    """Return the bags of a list column, or of a plain column (a bag for each value).

    `factors` is the list column with the weight of each id; the rule says how many ids of a bag are
    kept, and which; `encode` converts the flat values, given their location, to ids.
    """
    ids, lengths = read_values(array, encode, location)
    weights = None if factors is None else read_factors(factors, lengths, rule, location)
    bags = Ragged(ids, offsets_of(lengths), weights)
    if rule.max_length is None:
        return bags
    return bags.first(rule.max_length) if rule.keep == "first" else bags.last(rule.max_length)


def as_list_column(array: Any, nan: NanRule) -> Any:
    """Return a list column; a plain column's values become lists of one, missing ones empty.

    A column with only null lists, as in a single request, may have any type.
    """
    if arrow_types.is_bag(array.type):
        return array
    array = arrow_types.as_plain(array)  # a dictionary may hold a null
    missing = pc.is_null(array, nan_is_null=nan.name == "missing")
    if arrow_types.kind_of(array.type) == arrow_types.TEXT:
        missing = pc.or_(missing, pa.array(np.diff(texts_of(array).offsets) == 0))
    there = pc.invert(missing)
    offsets = pa.array(offsets_of(there.to_numpy(zero_copy_only=False)))
    return pa.LargeListArray.from_arrays(offsets, array.filter(there))


def with_distinct(part: Part, column: str, weights: str | None) -> Part:
    """Return a part with the duplicates in a column's lists removed, keeping the first."""
    return replace(part, read=partial(_read_distinct, part, column, weights))


def _read_distinct(
    part: Part, column: str, weights: str | None, names: Sequence[str], coded: Sequence[str] = ()
) -> Pieces:
    for location, piece in part.pieces(names, [name for name in coded if name != column]):
        is_bag = arrow_types.is_bag(piece.schema.field(column).type)
        yield location, _distinct(piece, column, weights) if is_bag else piece


def _distinct(piece: pa.RecordBatch, column: str, weights: str | None) -> pa.RecordBatch:
    values, lengths = flat(piece.column(column))
    values = arrow_types.as_plain(values)  # a dictionary may hold a value twice
    codes = pc.dictionary_encode(values, null_encoding="encode").indices.to_numpy()
    rows = np.repeat(np.arange(len(lengths)), lengths)
    first = np.sort(np.unique(rows * (len(codes) + 1) + codes, return_index=True)[1])
    bags = Ragged(first, offsets_of(np.bincount(rows[first], minlength=len(lengths))))
    arrays = {column: values}
    if weights is not None:
        arrays[weights], found = flat(piece.column(weights))
        if (found != lengths).any():
            return piece  # the encoder refuses it later
    for name, array in arrays.items():
        made = bags.as_lists(array.take(pa.array(first)))
        piece = piece.set_column(piece.schema.get_field_index(name), name, made)
    return piece


def read_factors(factors: Any, lengths: Array, rule: ColumnRule, location: Location) -> Array:
    """Return the weights (n,) float32 of ids in lists of these lengths."""
    here = location.of_column(rule.weights or "weights")
    _, found = flat(factors)
    here.refuse(found != lengths, lambda row: f"{found[row]} weights for {lengths[row]} ids")
    return read_values(factors, _read_weights, here)[0]


def _read_weights(values: Any, location: Location) -> Array:
    weights, missing = read_numbers(values, NanRule("error"), location)
    location.refuse(missing, lambda row: "a weight is null")
    return weights.astype(np.float32)
