# SPDX-License-Identifier: Apache-2.0
"""What the constructor of a click model is given: checked, as plain values that make it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsetrain.data.shared_tables import owners_of
from sparsetrain.embedding.collection import POOLINGS
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import check_table_dtype
from sparsetrain.system.argument_checks import is_int, require_int


def checked_config(made: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `ClickModel` by name, defaults filled in; `made` is the class's name.

    Raises
    ------
    ConfigError
        For the first that does not fit.
    """
    rows, names = checked_widths(made, "rows", given["rows"]), given["names"]
    if isinstance(names, str):
        raise ConfigError(f"{made}: names is {names!r}; give a list")
    config = {
        **given,
        "rows": rows,
        "dim": require_int(f"{made}: dim", given["dim"]),
        "num_dense": require_int(f"{made}: num_dense", given["num_dense"], 0),
        "weighted": _flag(made, "weighted", given["weighted"]),
        "names": [f"C{i + 1}" for i in range(len(rows))] if names is None else [*map(str, names)],
        "row_weights": _flag(made, "row_weights", given["row_weights"]),
        "share_embedding": _share(made, given["share_embedding"]),
    }
    if not rows:
        raise ConfigError(f"{made}: rows is empty; it takes at least one table")
    pooling = config["pooling"]
    if pooling not in POOLINGS:
        raise ConfigError(f"{made}: pooling is None, 'sum' or 'mean', not {pooling!r}")
    if config["weighted"] and pooling != "sum":
        raise ConfigError(f"{made}: weighted bags need pooling='sum'")
    check_table_dtype(config["table_dtype"], made)
    if len(config["names"]) != len(rows):
        raise ConfigError(f"{made}: {len(config['names'])} names for {len(rows)} tables")
    twice = [name for name, count in Counter(config["names"]).items() if count > 1]
    if twice:
        raise ConfigError(f"{made}: names has {twice[0]!r} twice; names of features must differ")
    _check_owners(made, config)
    return config


def checked_widths(made: str, name: str, numbers: Sequence[int]) -> list[int]:
    """Whole numbers above 0.

    Raises
    ------
    ConfigError
        With the argument's name, and the class's that was `made`.
    """
    given = list(numbers) if np.iterable(numbers) else None  # once: it may be an iterator
    if given is None or not all(map(is_int, given)):
        fix = "; give a list" if is_int(numbers) else ""
        raise ConfigError(f"{made}: {name} must be whole numbers, not {numbers!r}{fix}")
    widths = [int(number) for number in given]
    if any(width < 1 for width in widths):
        raise ConfigError(f"{made}: every number in {name} must be 1 or more: {widths}")
    return widths


def _flag(made: str, name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{made}: {name} is {value!r}; give True or False")
    return bool(value)


def _share(made: str, share: Mapping[str, str] | None) -> dict[str, str] | None:
    """Plain names; None where every feature has a table of its own."""
    if share is not None and not isinstance(share, Mapping):
        raise ConfigError(
            f"{made}: share_embedding is {share!r:.60}; give a dict of names to names"
        )
    return {str(name): str(owner) for name, owner in share.items()} if share else None


def _check_owners(made: str, config: Mapping[str, Any]) -> None:
    """A feature has as many rows as the one whose table it looks up."""
    names, rows = config["names"], config["rows"]
    owners = owners_of(names, config["share_embedding"] or {})
    for name, own, owner in zip(names, rows, owners, strict=True):
        if own != rows[owner]:
            raise ConfigError(
                f"{made}: {name} has {own} rows and {names[owner]}, whose table it looks up, "
                f"{rows[owner]}; give both the same"
            )
