# SPDX-License-Identifier: Apache-2.0
"""Groups of rows by the ids of one feature, for the grouped AUC."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsetrain.data.batch import Batch
from sparsetrain.errors import ConfigError, DataError


def group_feature(model: Any, group_by: str | None) -> int | None:
    """Return the number of the feature that groups rows, or None if none does.

    Raises
    ------
    ConfigError
        If the model has no feature of this name.
    """
    if group_by is None:
        return None
    names = model.config()["names"]
    if group_by not in names:
        raise ConfigError(
            f"group_by is {group_by!r}; it must be one of the features, {', '.join(names)}"
        )
    return int(names.index(group_by))


def groups_of(model: Any, batch: Batch, group_by: str | None) -> np.ndarray | None:
    """Return the group of each row, (B,) int64.

    Raises
    ------
    DataError
        If a row has no id of the feature, or several.
    """
    feature = group_feature(model, group_by)
    if feature is None:
        return None
    if not isinstance(batch.ids, tuple):
        return batch.ids[:, feature]
    bags = batch.ids[feature]
    counts = np.diff(bags.offsets)
    if (counts != 1).any():
        row = int(np.argmax(counts != 1))
        raise DataError(f"row {row}: group_by {group_by!r} has {counts[row]} ids; it must have one")
    return bags.ids
