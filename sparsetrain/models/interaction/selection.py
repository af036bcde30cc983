# SPDX-License-Identifier: Apache-2.0
"""Options of DLRM's interaction: their checks and defaults, and the layer they select."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, get_args

from sparsetrain.errors import ConfigError
from sparsetrain.models.interaction.cross import (
    LAYERS,
    CrossInteraction,
    default_rank,
    side_by_side,
)
from sparsetrain.models.interaction.operator import dot_interaction
from sparsetrain.models.interaction.result_layout import output_width
from sparsetrain.system.argument_checks import require_int

Interaction: TypeAlias = Literal["dot", "cross", "concat"]
CROSS_OPTIONS = ("cross_layers", "cross_rank")


def check_interaction(
    name: Interaction, numbers: Mapping[str, int | None], width: int
) -> dict[str, Any]:
    """Return the options of an interaction with `width` inputs, with defaults filled in.

    Raises
    ------
    ConfigError
        If the interaction is unknown, a number is not a positive integer, or an option belongs to a
        different interaction.
    """
    if name not in get_args(Interaction):
        raise ConfigError(f"DLRM: interaction must be 'dot', 'cross' or 'concat', not {name!r}")
    explicit = {key: number for key, number in numbers.items() if number is not None}
    if name != "cross":
        for key in explicit:
            raise ConfigError(f"DLRM: {key} is for interaction='cross'; {name!r} has no layers")
        return {"interaction": name, **numbers}
    checked = {key: require_int(f"DLRM: {key}", number) for key, number in explicit.items()}
    defaults = {"cross_layers": LAYERS, "cross_rank": default_rank(width)}
    return {"interaction": name, **defaults, **checked}


def make_interaction(
    config: Mapping[str, Any], features: int, dim: int, embedded: int
) -> tuple[Callable[..., Any], int]:
    """Return the layer that maps (B, D) and (B, F, D) to (B, columns), and `columns`.

    Except for "dot", the layer also accepts concatenated embeddings, (B, `embedded`).
    """
    if config["interaction"] == "dot":
        return dot_interaction, output_width(features, dim)
    if config["interaction"] == "concat":
        return side_by_side, dim + embedded
    sizes = config["cross_layers"], config["cross_rank"]
    cross = CrossInteraction(features, dim, *sizes, embedded=embedded)
    return cross, cross.width
