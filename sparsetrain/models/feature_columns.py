# SPDX-License-Identifier: Apache-2.0
"""Places of a model's features among the columns of an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.errors import ConfigError
from sparsetrain.models.features import Dense, Feature


def column_of(name: str, feature: Feature) -> str:
    """Return the column of a feature, which has its name unless it names another."""
    return getattr(feature, "column", None) or name


def shared_columns(features: Mapping[str, Feature]) -> dict[str, str]:
    """Return, of each column looked up in the table of one before it, that column."""
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
    """Return where each feature stands in a batch of the encoder.

    `cls` is the name of the model's class, for messages; `rows` are those of each feature's table.

    Raises
    ------
    ConfigError
        If a column is missing, a table has fewer rows than the encoder, or features that share a
        table do not in the encoder.
    """
    places: dict[str, Any] = {}
    for name, feature in features.items():
        if isinstance(feature, Dense):
            places[name] = _dense_columns(cls, feature, encoder)
            continue
        place = places[name] = _category(cls, column_of(name, feature), encoder)
        if encoder.rows[place] > rows[name]:
            raise ConfigError(
                f"{cls}: {feature.tables[0]} has {rows[name]} rows, the encoder's "
                f"{column_of(name, feature)} {encoder.rows[place]}: make the model with as many"
            )
    if not encoder.encoded or encoder.share_embedding:
        _check_sharing(cls, features, places, encoder)
    return places


def _category(cls: str, column: str, encoder: Encoder) -> int:
    columns = list(encoder.columns)
    if column not in columns:
        raise ConfigError(
            f"{cls} reads the column {column!r}; the encoder has {', '.join(columns)}"
        )
    return columns.index(column)


def _check_sharing(
    cls: str, features: Mapping[str, Feature], places: Mapping[str, Any], encoder: Encoder
) -> None:
    """Refuse features of one table whose values the encoder numbers apart."""
    first: dict[str, str] = {}  # table -> the first feature of it
    for name, feature in features.items():
        for table in feature.tables:
            other = first.setdefault(table, name)
            if encoder.owners[places[name]] != encoder.owners[places[other]]:
                columns = [column_of(n, features[n]) for n in (other, name)]
                raise ConfigError(
                    f"{cls}: {columns[0]} and {columns[1]} are ids of one table, but the encoder "
                    f"numbers them apart: give {columns[1]} share_embedding = {columns[0]!r} in "
                    f"the schema, as schema.with_shared({{{columns[1]!r}: {columns[0]!r}}}) does"
                )


def _dense_columns(cls: str, feature: Dense, encoder: Encoder) -> list[int] | None:
    """Return numbers of the columns; None for all of them."""
    if feature.columns is None:
        return None
    known = list(encoder.dense_columns)
    missing = [name for name in feature.columns if name not in known]
    if missing:
        raise ConfigError(
            f"{cls} reads the dense column {missing[0]!r}; the encoder has {', '.join(known)}"
        )
    return [known.index(name) for name in feature.columns]
