# SPDX-License-Identifier: Apache-2.0
"""Inputs of a model's program, in terms of the encoder's columns.

`Fields` read the ids of all columns of one width together, as rows of one storage. Any other
feature reads its own ids, and for lists also the end of each row.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Columns
from dataclasses import replace
from typing import NamedTuple

from sparsetrain.data.dense.kind import Dense as Column
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.errors import ConfigError
from sparsetrain.models.features import Dense, Feature, Ids, Sequence, column_of
from sparsetrain.models.fields import Fields
from sparsetrain.models.model import Model
from sparsetrain.serving.manifest import Record

_KINDS = {"": "rows", "_ends": "offsets", "_weights": "weights"}  # by suffix of the argument's name
_IN_PYTHON = ("inputs", "read", "prepare_scores")  # methods that an export cannot run


class ReadFeature(NamedTuple):
    """How a feature reads one categorical column.

    Attributes
    ----------
    column : str
    first : int
        Row of the storage at which its table begins.
    single : bool
        Whether a row must have exactly one id.
    length : int
        Most ids of a row; a longer row keeps its last ids. 0 without a limit.
    like : int
        Position of the feature that must have the same row lengths; -1 if there is none.
    together : (int, int) or ()
        First feature and number of features that are read together with this one; () if it is read
        with all features, or alone.
    """

    column: str
    first: int = 0
    single: bool = False
    length: int = 0
    like: int = -1
    together: tuple[int, ...] = ()


class ModelInputs(NamedTuple):
    """Inputs of a program.

    Attributes
    ----------
    records : list of Record
        For each input its kind, and the position of its feature, or of the first feature that is
        read together with it; -1 for all features.
    features : list of ReadFeature
    dense : list of Dense
        Dense columns, with their positions among the program's dense inputs.
    takes_features : bool
        Whether each feature's ids are a separate input.
    """

    records: list[Record]
    features: list[ReadFeature]
    dense: list[Column]
    takes_features: bool = False


def function_of(model: Model) -> str:
    """Return the function to export: ``"logits"``, or ``"query"`` for a retrieval model.

    Raises
    ------
    ConfigError
        If the model has neither, overrides the preparation of inputs, or has a label that the C
        library does not support.
    """
    name = type(model).__name__
    for method in _IN_PYTHON:
        if getattr(type(model), method) is not getattr(Model, method):
            raise ConfigError(f"export: {name}.{method} is Python code, which an export cannot run")
    for label, own in model.all_labels.items():
        if not own.is_exported:
            raise ConfigError(
                f"export: label {label!r} is {own}; an export supports binary and real labels"
            )
    function = "logits" if model.all_labels else "query"
    if function not in model.functions:
        raise ConfigError(f"export: {name} has no function {function!r}")
    return function


def inputs_of(model: Model, encoder: Encoder, arguments: Iterable[str]) -> ModelInputs:
    """Find the feature and kind of each of a program's inputs, by their names.

    Raises
    ------
    ConfigError
        If an input is not a feature, or the model has several `Dense` features.
    """
    dense: list[Column] = [*encoder.dense]
    if model.all_fields is not None:
        kinds, features = _of_fields(model.all_fields, encoder.columns)
        kinds["dense"] = ("input", "dense", -1)
        return ModelInputs([kinds[name] for name in arguments], features, dense)
    found: dict[str, tuple[int, ReadFeature]] = {}
    records: list[Record] = []
    numbers = [n for n, f in model.features.items() if isinstance(f, Dense)]
    for argument in arguments:
        name, feature, kind = _feature_of(model, argument)
        if isinstance(feature, Dense):
            if len(numbers) > 1:
                raise ConfigError(
                    f"export: {type(model).__name__} has several Dense features, "
                    f"{', '.join(numbers)}; an export supports one"
                )
            if feature.columns is not None:
                dense = [_alone(encoder, name, at) for at, name in enumerate(feature.columns)]
            records.append(("input", "dense", -1))
            continue
        if name not in found:
            found[name] = len(found), _read(name, feature, found)
        records.append(("input", kind, found[name][0]))
    if not any(record[1] == "dense" for record in records):
        dense = []
    takes_features = any(place != -1 for _, _, place in records)
    return ModelInputs(records, [read for _, read in found.values()], dense, takes_features)


def _alone(encoder: Encoder, name: str, place: int) -> Column:
    """Return a column of numbers, moved to position `place` and without its flag."""
    column = encoder.dense[encoder.dense_columns.index(name)]
    changes = {"place": place, "flag": None} if column.has_flag else {"place": place}
    return replace(column, **changes)


def _of_fields(fields: Fields, columns: Columns) -> tuple[dict[str, Record], list[ReadFeature]]:
    """Return the record of each argument, and how columns are read, grouped by width."""
    records: dict[str, Record] = {}
    features: list[ReadFeature] = []
    for _, placement, arguments in fields.parts:
        count, begin = len(placement.features), len(features)
        several = count < len(columns)
        kinds = zip(arguments, _KINDS.values(), strict=False)
        records |= {name: ("input", kind, begin if several else -1) for name, kind in kinds}
        features += [
            ReadFeature(columns[at], int(first), together=(begin, count) if several else ())
            for at, first in zip(placement.features, placement.first_rows, strict=True)
        ]
    return records, features


def _feature_of(model: Model, argument: str) -> tuple[str, Feature, str]:
    for end, kind in _KINDS.items():
        name = argument.removesuffix(end)
        if argument.endswith(end) and name in model.features:
            return name, model.features[name], kind
    raise ConfigError(f"export: {type(model).__name__} reads {argument!r}, which is not a feature")


def _read(name: str, feature: Feature, found: dict[str, tuple[int, ReadFeature]]) -> ReadFeature:
    column = column_of(name, feature)
    if isinstance(feature, Ids):
        return ReadFeature(column, single=True)
    assert isinstance(feature, Sequence)
    like = -1 if feature.like is None else found[feature.like][0]
    return ReadFeature(column, length=feature.length or 0, like=like)
