# SPDX-License-Identifier: Apache-2.0
"""Gradient program of a model, with checks for a training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsetrain.ad.gradient import Unreached
from sparsetrain.compiler.program import GradientProgram, value_and_grad
from sparsetrain.errors import ConfigError
from sparsetrain.models.model_checks import unused_parameters_error


def gradient_program(
    model: Any, module: Any, trained: Sequence[str], **options: Any
) -> GradientProgram:
    """Build the gradient program of a model's loss; `options` as in `value_and_grad`.

    Raises
    ------
    ConfigError
        If a parameter is unused, a table is looked up by ids that are not a feature, or the loss
        returns a tuple.
    """
    try:
        program = value_and_grad(
            module,
            "loss",
            trained if model.constants() else None,
            densify=model.densify,
            buffers=model.buffers(),
            **options,
        )
    except Unreached as error:
        raise unused_parameters_error(model, error.names) from None
    sparse = {n for n, g in program.gradient.structure.items() if g is not None}
    if undeclared := sorted(sparse - model.tables().keys()):
        raise ConfigError(
            f"{type(model).__name__}: {undeclared[0]!r} is looked up by ids that are not a "
            "feature: name the table in Ids or Sequence, or wrap it in ad.densify"
        )
    if program.gradient.others:
        raise ConfigError(
            f"the loss of {type(model).__name__} returns a tuple: it must return only the loss"
        )
    return program
