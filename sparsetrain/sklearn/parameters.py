# SPDX-License-Identifier: Apache-2.0
"""Parameters of estimators as what they stand for: a class, an optimizer, a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.utils import check_random_state

from sparsetrain import models, optim
from sparsetrain.errors import ConfigError
from sparsetrain.models.options import check_options, is_own, require_options


def class_of(model: Any) -> type:
    """Return the class that a parameter `model` stands for."""
    made = models.MODELS.get(model, model)
    if not isinstance(made, type):
        raise ConfigError(f"model is {made!r:.60}; give a class or one of {[*models.MODELS]}")
    return made


def model_of(model: Any, options: Mapping[str, Any] | None) -> tuple[Any, dict[str, Any]]:
    """Return the class and its options, which the parameters stand for, checked by name."""
    made, given = class_of(model), dict(options or {})
    if "dim" in given:
        raise ConfigError("model_options has 'dim', which is an argument of the estimator itself")
    if issubclass(made, models.Model):
        require_options(made, given)
        if is_own(made):
            given = check_options(made, given)
    return made, given


def optimizer_of(name: str, lr: float, options: Mapping[str, Any] | None) -> optim.Optimizer:
    """Return the optimizer that the parameters stand for."""
    if name not in optim.OPTIMIZERS:
        raise ConfigError(f"optimizer is {name!r:.60}; give one of {', '.join(optim.OPTIMIZERS)}")
    return optim.OPTIMIZERS[name](**{"lr": lr, **(options or {})})


def batch_size_of(given: Any, rows: int) -> Any:
    """Return the size of a batch of so many rows."""
    return min(128, max(8, rows // 32)) if given == "auto" else given


def seed_of(random_state: Any) -> int:
    """Return a seed by scikit-learn's rules."""
    return int(check_random_state(random_state).randint(2**31 - 1))
