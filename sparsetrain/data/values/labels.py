# SPDX-License-Identifier: Apache-2.0
"""Labels, by their kind, and row weights (0 or more) as float32. Errors name the row.

The kind of a label is "binary" (0 or 1), "real" or a number C of classes, which are 0 to C - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from sparsetrain.data.values.arrays import (
    Array,
    as_array,
    as_readonly,
    describe_bad_weight,
    first_bad_weight,
    to_float32,
)
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import NanRule, read_numbers
from sparsetrain.errors import DataError

LabelKind = Literal["binary", "real"] | int


def is_label_kind(value: object) -> bool:
    """Return whether this is the kind of a label."""
    return value in ("binary", "real") or type(value) is int and value > 1


def logit_columns(kinds: Mapping[str, LabelKind]) -> dict[str, slice]:
    """Return the columns of each label among the logits: one for each class, or a single one."""
    ends = [0, *accumulate(map(_num_logits, kinds.values()))]
    return dict(zip(kinds, map(slice, ends, ends[1:]), strict=True))


def num_logits(kinds: Mapping[str, LabelKind]) -> int:
    """Return the number of logits of all labels."""
    return sum(map(_num_logits, kinds.values()))


def _num_logits(kind: LabelKind) -> int:
    return kind if isinstance(kind, int) else 1


def bad_labels(labels: Array, kind: LabelKind, missing: bool) -> Array:
    """Return which of the labels are not of their kind; with `missing`, NaN is allowed."""
    if kind == "real":
        bad = ~np.isfinite(labels)
    else:
        classes = 2 if kind == "binary" else kind
        bad = ~((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))
    return bad & ~np.isnan(labels) if missing else bad


def describe_bad_label(number: float, shown: object, kind: LabelKind) -> str:
    """Say what is wrong with a label that is not of its kind."""
    wanted = {"binary": "0 or 1", "real": "a number"}.get(str(kind), f"a class below {kind}")
    if np.isnan(number):
        return f"the label is null; drop the row or give it {wanted}"
    finite = " that is finite in float32" if kind == "real" else ""
    return f"the label is {shown}; it must be {wanted}{finite}"


def to_labels(value: object, num_rows: int) -> Array:
    """Return labels as (B,) float32, or (B, T) of several with NaN where one is missing.

    Whether they are of their kind is for the model to check, which knows it.
    """
    array = as_array(value, "labels")
    if array.shape[:1] != (num_rows,) or array.ndim > 2 or array.shape[1:] in ((0,), (1,)):
        raise DataError(
            f"labels must be ({num_rows},) as dense has it, their shape is {array.shape}; of T "
            f"labels they are ({num_rows}, T)"
        )
    labels = to_float32(array, "labels")
    bad = bad_labels(labels, "real", labels.ndim == 2)
    if bad.any():
        where = tuple(np.argwhere(bad)[0])
        raise DataError(
            f"labels: row {where[0]}: {describe_bad_label(labels[where], array[where], 'real')}"
        )
    return as_readonly(labels)


def check_labels(labels: np.ndarray, kinds: Mapping[str, LabelKind]) -> None:
    """Refuse labels of a batch that are not those of the model.

    Raises
    ------
    DataError
        With the shape that is wanted, or the first row whose label is not of its kind.
    """
    count = labels.shape[1] if labels.ndim == 2 else 1
    if count != len(kinds):
        raise DataError(f"the batch has {count} labels, the model {len(kinds)}: {', '.join(kinds)}")
    columns = np.atleast_2d(labels.T)
    for values, (name, kind) in zip(columns, kinds.items(), strict=True):
        bad = bad_labels(values, kind, count > 1)
        if bad.any():
            row = int(np.argmax(bad))
            where = f"labels: row {row}" + (f", {name}" if count > 1 else "")
            raise DataError(f"{where}: {describe_bad_label(values[row], f'{values[row]:g}', kind)}")


def read_labels(
    array: Any, location: Location, kind: LabelKind = "binary", missing: bool = False
) -> Array:
    """Return (n,) float32 from integers, floats, booleans or texts of these.

    With `missing`, nulls and NaN are NaN; otherwise they are refused.
    """
    values = _numbers(array, location)
    with np.errstate(over="ignore"):
        labels = values.astype(np.float32)
    # Checked before float32 can round a number to a whole one.
    bad = bad_labels(labels if kind == "real" else values, kind, missing)
    location.refuse(bad, lambda row: describe_bad_label(values[row], f"{values[row]:g}", kind))
    return labels


def read_row_weights(array: Any, location: Location) -> Array:
    """Return (n,) float32 from integers, floats or texts of numbers."""
    values = _numbers(array, location)
    with np.errstate(over="ignore"):
        weights = values.astype(np.float32)
    row = first_bad_weight(weights)
    if row is None:
        return weights
    if np.isnan(values[row]):
        raise location.error("the weight is null or NaN; drop the row or give it one", row)
    raise location.error(describe_bad_weight(f"{values[row]:g}"), row)


def _numbers(array: Any, location: Location) -> Array:
    """Return (n,) float64, NaN where one is missing."""
    values, missing = read_numbers(array, NanRule("missing"), location)
    return np.where(missing, np.nan, values) if missing.any() else values
