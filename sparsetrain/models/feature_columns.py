# SPDX-License-Identifier: Apache-2.0
"""Positions of a model's features among the columns of an encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.errors import ConfigError
from sparsetrain.models.features import Feature, column_of


def shared_columns(features: Mapping[str, Feature]) -> dict[str, str]:
    """Map each column that shares an earlier column's table to that column."""
    first: dict[str, str] = {}  # table -> its first column
    found = {}
    for name, feature in features.items():
        for table in feature.tables:
            column = column_of(name, feature)
            owner = first.setdefault(table, column)
            if owner != column:
                found[column] = owner
    return found


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
    _check_sharing(cls, features, places, encoder.known_owners)
    return places


def _check_sharing(
    cls: str,
    features: Mapping[str, Feature],
    places: Mapping[str, Any],
    owners: Sequence[int] | None,
) -> None:
    """Refuse features that share a table if the encoder numbers their values separately."""
    first: dict[str, str] = {}  # table -> its first feature
    for name, feature in features.items():
        for table in feature.tables:
            other = first.setdefault(table, name)
            if owners and owners[places[name]] != owners[places[other]]:
                columns = [column_of(n, features[n]) for n in (other, name)]
                raise ConfigError(
                    f"{cls}: {columns[0]} and {columns[1]} are ids of one table, but the encoder "
                    f"numbers them apart: give {columns[1]} share_embedding = {columns[0]!r} in "
                    f"the schema, as schema.with_shared({{{columns[1]!r}: {columns[0]!r}}}) does"
                )
