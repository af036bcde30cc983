# SPDX-License-Identifier: Apache-2.0
"""A DLRM's arguments, checked and as plain values: what is saved and makes the model again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, get_args

import numpy as np

from sparsetrain.errors import ConfigError
from sparsetrain.formats import check_table_dtype
from sparsetrain.models.interaction import Interaction
from sparsetrain.models.interaction.cross import LAYERS, default_rank


def checked_config(
    *,
    rows: Sequence[int],
    dim: int,
    bottom: Sequence[int],
    top: Sequence[int],
    num_dense: int,
    pooling: Any,
    weighted: bool,
    names: Sequence[str] | None,
    table_dtype: Any,
    row_weights: bool,
    interaction: Interaction,
    cross_layers: int | None,
    cross_rank: int | None,
) -> dict[str, Any]:
    """The arguments of `DLRM` by name, defaults filled in; those of an interaction if it has any.

    A model with the dot interaction is described as it was when there was no other.

    Raises
    ------
    ConfigError
        For what cannot be, in one line.
    """
    rows = _whole("rows", rows)
    names = list(names) if names is not None else [f"C{i}" for i in range(1, len(rows) + 1)]
    config: dict[str, Any] = {
        "rows": rows,
        "dim": _whole("dim", [dim])[0],
        "bottom": _whole("bottom", bottom),
        "top": _whole("top", top),
        "num_dense": _whole("num_dense", [num_dense])[0],
        "pooling": pooling,
        "weighted": bool(weighted),
        "names": [str(name) for name in names],
        "table_dtype": table_dtype,
        "row_weights": _flag("row_weights", row_weights),
    }
    _check(config)
    numbers = {"cross_layers": cross_layers, "cross_rank": cross_rank}
    return config | _of_interaction(interaction, numbers, (len(rows) + 1) * config["dim"])


def _of_interaction(name: str, numbers: Mapping[str, int | None], width: int) -> dict[str, Any]:
    if name not in get_args(Interaction):
        raise ConfigError(f"DLRM: interaction is 'dot' or 'cross', not {name!r}")
    given = {key: _whole(key, [n])[0] for key, n in numbers.items() if n is not None}
    for key, number in given.items():
        if name == "dot":
            raise ConfigError(f"DLRM: {key} is for interaction='cross'; 'dot' has no layers")
        if number < 1:
            raise ConfigError(f"DLRM: {key} must be 1 or more, not {number}")
    if name == "dot":
        return {}
    defaults = {"cross_layers": LAYERS, "cross_rank": default_rank(width)}
    return {"interaction": name, **defaults, **given}


def _whole(name: str, numbers: Sequence[int]) -> list[int]:
    try:
        return [index(number) for number in numbers]
    except TypeError:
        fix = "; give a list" if isinstance(numbers, int) else ""
        raise ConfigError(f"DLRM: {name} must be whole numbers, not {numbers!r}{fix}") from None


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"DLRM: {name} is {value!r}; give True or False")
    return bool(value)


def _check(config: Mapping[str, Any]) -> None:
    for name in ("rows", "bottom", "top"):
        if any(value < 1 for value in config[name]):
            raise ConfigError(f"DLRM: every number in {name} must be 1 or more: {config[name]}")
    if not config["rows"] or config["dim"] < 1 or config["num_dense"] < 0:
        raise ConfigError("DLRM: it takes at least one table, dim 1 and num_dense 0")
    if config["pooling"] not in (None, "sum", "mean"):
        raise ConfigError(f"DLRM: pooling is None, 'sum' or 'mean', not {config['pooling']!r}")
    if config["weighted"] and config["pooling"] != "sum":
        raise ConfigError("DLRM: weighted bags need pooling='sum'")
    check_table_dtype(config["table_dtype"], "DLRM")
    if len(config["names"]) != len(config["rows"]):
        raise ConfigError(f"DLRM: {len(config['names'])} names for {len(config['rows'])} tables")
