# SPDX-License-Identifier: Apache-2.0
"""Groups of rows by the ids of one feature, for the grouped AUC."""

from __future__ import annotations

import numpy as np

from sparsetrain.data.batch import Batch
from sparsetrain.errors import ConfigError
from sparsetrain.models import Model


def check_group_feature(model: Model, group_by: str | None) -> None:
    """Refuse a name that is not a feature with one id per row.

    Raises
    ------
    ConfigError
        If the model has no such feature.
    """
    names = model.single_ids()
    if group_by is not None and not model.label_kinds:
        raise ConfigError("group_by is for scores of labels, which this model has not")
    if group_by is not None and group_by not in names:
        raise ConfigError(
            f"group_by is {group_by!r}; it must be one of the features, {', '.join(names)}"
        )


def groups_of(model: Model, batch: Batch, group_by: str | None) -> np.ndarray | None:
    """Return the group of each row, (B,) int64.

    Raises
    ------
    DataError
        If a row has no id of the feature, or several.
    """
    if group_by is None:
        return None
    check_group_feature(model, group_by)
    groups: np.ndarray = model.read(group_by, batch)
    return groups
