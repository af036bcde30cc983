# SPDX-License-Identifier: Apache-2.0
"""Which interaction a DLRM has: its arguments, and what computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, get_args

from sparsetrain.errors import ConfigError
from sparsetrain.models.interaction.cross import LAYERS, CrossInteraction, default_rank
from sparsetrain.models.interaction.operator import dot_interaction
from sparsetrain.models.interaction.places import output_width
from sparsetrain.system.argument_checks import require_int

Interaction: TypeAlias = Literal["dot", "cross"]
CROSS_NUMBERS = ("cross_layers", "cross_rank")


def interaction_config(
    name: Interaction, numbers: Mapping[str, int | None], width: int
) -> dict[str, Any]:
    """What describes an interaction of `width` numbers, defaults filled in.

    Raises
    ------
    ConfigError
        For an interaction that there is not, numbers that it does not have, or none of their kind.
    """
    if name not in get_args(Interaction):
        raise ConfigError(f"DLRM: interaction is 'dot' or 'cross', not {name!r}")
    given = {key: number for key, number in numbers.items() if number is not None}
    if name == "dot":
        for key in given:
            raise ConfigError(f"DLRM: {key} is for interaction='cross'; 'dot' has no layers")
        return {"interaction": name, **numbers}
    for key, number in given.items():
        require_int(f"DLRM: {key}", number, 1)
    defaults = {"cross_layers": LAYERS, "cross_rank": default_rank(width)}
    return {"interaction": name, **defaults, **{key: int(n) for key, n in given.items()}}


def interaction_of(
    config: Mapping[str, Any], features: int, dim: int
) -> tuple[Callable[..., Any], int]:
    """What maps (B, D) and (B, F, D) to (B, columns), and how many columns those are."""
    if config["interaction"] == "dot":
        return dot_interaction, output_width(features, dim)
    made = CrossInteraction(features, dim, config["cross_layers"], config["cross_rank"])
    return made, made.width
