# SPDX-License-Identifier: Apache-2.0
"""Positions of a model's features among the columns of an encoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.shared_tables import require_shared
from sparsetrain.models.features import Feature, column_of


def shared_columns(features: Mapping[str, Feature]) -> dict[str, str]:
    """Map each column that shares an earlier column's table to that column."""
    return dict(_shared(features))


def _shared(features: Mapping[str, Feature]) -> Iterator[tuple[str, str]]:
    first: dict[str, str] = {}  # table -> its first column
    for name, feature in features.items():
        column = column_of(name, feature)
        for table in feature.tables:
            if (other := first.setdefault(table, column)) != column:
                yield column, other


def find_features(
    cls: str, features: Mapping[str, Feature], rows: Mapping[str, int], encoder: Encoder
) -> dict[str, Any]:
    """Return each feature's position in a batch of the encoder.

    `cls` is the name of the model's class, for messages; `rows` has the size of each feature's
    table.

    Raises
    ------
    ConfigError
        If a column is missing, a table has fewer rows than the encoder, or features share a table,
        but not in the encoder.
    """
    places = {n: feature.find(cls, n, rows[n], encoder) for n, feature in features.items()}
    if (known := encoder.known_tables) is not None:
        for column, other in _shared(features):
            require_shared(cls, column, other, known)
    return places
