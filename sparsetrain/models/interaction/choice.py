# SPDX-License-Identifier: Apache-2.0
"""Which interaction a DLRM has, and what computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from sparsetrain.models.interaction.cross import CrossInteraction
from sparsetrain.models.interaction.operator import dot_interaction
from sparsetrain.models.interaction.places import output_width

Interaction: TypeAlias = Literal["dot", "cross"]


def interaction_of(config: Mapping[str, Any]) -> tuple[Callable[..., Any], int]:
    """What maps (B, D) and (B, F, D) to (B, columns), and how many columns those are."""
    features, dim = len(config["rows"]), config["dim"]
    if config.get("interaction", "dot") == "dot":
        return dot_interaction, output_width(features, dim)
    made = CrossInteraction(features, dim, config["cross_layers"], config["cross_rank"])
    return made, made.width
