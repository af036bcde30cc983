# SPDX-License-Identifier: Apache-2.0
"""Inputs of a model's program, in terms of the encoder's columns.

`Fields` read the ids of all columns together, as rows of one storage. Every other feature reads its
own ids, with the ends of rows if they are lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.errors import ConfigError
from sparsetrain.models.features import Dense, Feature, Ids, Sequence, column_of
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
        First row of its table in the storage.
        single : bool
        Whether a row must have exactly one id.
        length : int
        Keep only the last `length` ids of a row; 0 keeps all.
        like : int
        The feature that has the same number of ids in each row; -1 if there is none.
    """

    column: str
    first: int = 0
    single: bool = False
    length: int = 0
    like: int = -1


class ModelInputs(NamedTuple):
    """Inputs of a program.

    Attributes
    ----------
    records : list of Record
        For each input its kind, and the number of its feature, -1 for all features together.
    features : list of ReadFeature
    dense : list of str
        Dense columns in the program's order.
    flags : bool
        Whether flags of missing values follow the dense columns.
        vectors : dict
        Vector columns, which come last -> their lengths.
    """

    records: list[Record]
    features: list[ReadFeature]
    dense: list[str]
    flags: bool
    vectors: Mapping[str, int]


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
    flags, vectors = encoder.settings.missing_flags, encoder.schema.vectors
    dense = [name for name in encoder.dense_columns if name not in vectors]
    if model.all_fields is not None:
        places = zip(encoder.columns, model.all_fields.first_rows, strict=True)
        features = [ReadFeature(column, first) for column, first in places]
        return ModelInputs(
            [("input", name, -1) for name in arguments], features, dense, flags, vectors
        )
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
                dense, flags, vectors = list(feature.columns), False, {}
            records.append(("input", "dense", -1))
            continue
        if name not in found:
            found[name] = len(found), _read(name, feature, found)
        records.append(("input", kind, found[name][0]))
    if not any(record[1] == "dense" for record in records):
        dense, flags, vectors = [], False, {}
    return ModelInputs(records, [read for _, read in found.values()], dense, flags, vectors)


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
