# SPDX-License-Identifier: Apache-2.0
"""Arguments of models as plain values that JSON can hold, those of click models validated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsetrain.data.schema.schema import check_label_kinds
from sparsetrain.data.shared_tables import owners_of
from sparsetrain.data.values.labels import LabelKind
from sparsetrain.embedding.collection import POOLINGS
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import check_table_dtype
from sparsetrain.system.argument_checks import is_int, require_int


def check_config(cls: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `ClickModel` by name, with defaults filled in.

    `cls` is the name of the class, for error messages.

    Raises
    ------
    ConfigError
        For the first invalid argument.
    """
    rows, names = check_widths(cls, "rows", arguments["rows"]), arguments["names"]
    if isinstance(names, str):
        raise ConfigError(f"{cls}: names is {names!r}; give a list")
    config = {
        **arguments,
        "rows": rows,
        "dim": require_int(f"{cls}: dim", arguments["dim"]),
        "num_dense": require_int(f"{cls}: num_dense", arguments["num_dense"], 0),
        "weighted": _flag(cls, "weighted", arguments["weighted"]),
        "names": [f"C{i + 1}" for i in range(len(rows))] if names is None else [*map(str, names)],
        "row_weights": _flag(cls, "row_weights", arguments["row_weights"]),
        "share_embedding": _share(cls, arguments["share_embedding"]),
        "labels": _labels(cls, arguments["labels"]),
        "label_weights": dict(arguments["label_weights"] or {}) or None,
    }
    check_table_dtype(config["table_dtype"], cls)
    pooling, names = config["pooling"], config["names"]
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    rules = {
        "rows is empty; it takes at least one table": not rows,
        f"pooling is None, 'sum' or 'mean', not {pooling!r}": pooling not in POOLINGS,
        "weighted bags need pooling='sum'": config["weighted"] and pooling != "sum",
        f"{len(names)} names for {len(rows)} tables": len(names) != len(rows),
        f"names has {repeated!r} twice; names of features must differ": repeated is not None,
    }
    for message, broken in rules.items():  # what is wrong -> whether it is
        if broken:
            raise ConfigError(f"{cls}: {message}")
    _check_owners(cls, config)
    return config


def check_widths(cls: str, name: str, numbers: Sequence[int]) -> list[int]:
    """Return positive integers as a list.

    Raises
    ------
    ConfigError
        If they are something else; names the argument and its class.
    """
    items = list(numbers) if np.iterable(numbers) else None  # once: it may be an iterator
    if items is None or not all(map(is_int, items)):
        fix = "; give a list" if is_int(numbers) else ""
        raise ConfigError(f"{cls}: {name} must be whole numbers, not {numbers!r}{fix}")
    widths = [int(number) for number in items]
    if any(width < 1 for width in widths):
        raise ConfigError(f"{cls}: every number in {name} must be 1 or more: {widths}")
    return widths


def require_rows(cls: str, rows: Mapping[str, int], *columns: str) -> None:
    """Refuse rows of tables by column that lack one of the columns.

    Raises
    ------
    ConfigError
        With the first that is missing.
    """
    if not isinstance(rows, Mapping):
        raise ConfigError(
            f"{cls}: rows is {rows!r:.60}; give a dict: dict(zip(encoder.columns, encoder.rows))"
        )
    for column in columns:
        if column not in rows:
            raise ConfigError(f"{cls}: rows has no column {column!r}; it has {', '.join(rows)}")


def plain_value(value: Any) -> Any:
    """Return a value as JSON would give it back."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain_value(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _flag(cls: str, name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{cls}: {name} is {value!r}; give True or False")
    return bool(value)


def _labels(cls: str, labels: Mapping[str, LabelKind] | None) -> dict[str, LabelKind]:
    """Return the labels by name; by default one of 0 and 1."""
    given: Mapping[str, LabelKind] = {"label": "binary"} if labels is None else labels
    check_label_kinds(f"{cls}: labels", given)
    if not given:
        raise ConfigError(f"{cls}: labels is empty; name at least one")
    return dict(given)


def _share(cls: str, share: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return plain names, or None if every feature has a table of its own."""
    if share is not None and not isinstance(share, Mapping):
        raise ConfigError(f"{cls}: share_embedding is {share!r:.60}; give a dict of names to names")
    return {str(name): str(owner) for name, owner in share.items()} if share else None


def _check_owners(cls: str, config: Mapping[str, Any]) -> None:
    """Refuse a feature with other rows than the one whose table it looks up."""
    names, rows = config["names"], config["rows"]
    owners = owners_of(names, config["share_embedding"] or {})
    for name, own, owner in zip(names, rows, owners, strict=True):
        if own != rows[owner]:
            raise ConfigError(
                f"{cls}: {name} has {own} rows and {names[owner]}, whose table it looks up, "
                f"{rows[owner]}; give both the same"
            )
