# SPDX-License-Identifier: Apache-2.0
"""`Trained`: parameters of all estimators, and the training that uses them.

Dataclasses generate the constructors, since scikit-learn reads their signatures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from sparsetrain import models, optim
from sparsetrain.data import Encoder
from sparsetrain.errors import ConfigError, meant
from sparsetrain.models.arguments import check_options, is_own, require_options
from sparsetrain.optim.arguments import optimizer_of
from sparsetrain.training.trainer import Trainer


@dataclass(kw_only=True, eq=False, repr=False)
class Trained(BaseEstimator):
    """An estimator around a trainer."""

    model: Any = field(default="dlrm", kw_only=False)
    dim: int | Mapping[str, int] = 16
    model_options: Mapping[str, Any] | None = None
    optimizer: str = "adagrad"
    lr: float = 0.02
    optimizer_options: Mapping[str, Any] | None = None
    epochs: Any = "auto"
    batch_size: Any = "auto"
    random_state: Any = None
    target: str = "auto"
    verbose: bool = False

    def _model(self) -> tuple[Any, dict[str, Any]]:
        """Return the model's class and options; raise for wrong names before data are read."""
        self._optimizer()
        kind = models.kind_of(self.model) if isinstance(self.model, str) else self.model
        made, given = models.MODELS.get(kind, kind), dict(self.model_options or {})
        if not isinstance(made, type):
            known = [*models.MODELS]
            raise ConfigError(
                f"model is {made!r:.60}; give a class or one of {known}{meant(str(made), known)}"
            )
        if "dim" in given:
            raise ConfigError("model_options has 'dim': pass dim to the estimator itself")
        if issubclass(made, models.Model):
            require_options(made, given)
            if is_own(made):
                given = check_options(made, given)
        return made, given

    def _optimizer(self) -> optim.Optimizer:
        return optimizer_of(self.optimizer, **{"lr": self.lr, **(self.optimizer_options or {})})

    def _seed(self) -> int:
        """Return a seed drawn from `random_state`, by scikit-learn's rules."""
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _trainer(self, model: Any, encoder: Encoder) -> Trainer:
        return Trainer(
            model, self._optimizer(), target=self.target, seed=self._seed(), encoder=encoder
        )

    def _fit(self, rows: Any, count: int, **options: Any) -> Any:
        """Train `trainer_` on `count` rows; `options` are further arguments of its `fit`."""
        self.batch_size_ = batch_size_of(self.batch_size, count)
        self.history_ = self.trainer_.fit(
            rows,
            batch_size=self.batch_size_,
            progress="auto" if self.verbose else None,
            **options,
        )
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "trainer_")


def batch_size_of(given: Any, rows: int) -> Any:
    """Return the batch size for a number of rows.

    Batches of 512 halve the time on large data and cost no AUC; small data need more steps.
    """
    if given != "auto":
        return given
    return max(8, min(128, rows // 32), min(512, rows // 400))


_FEW_ROWS, _ROWS_OF_A_VALUE = 4096, 100


def epochs_of(given: Any, rows: int, values: int, patience: int | None) -> Any:
    """Return the number of epochs for these numbers of rows and of values in all categories.

    A second epoch overfits values that occur in few rows.
    """
    rules = (  # the first that holds decides
        (given != "auto", given),
        (patience is not None, 20),  # the most; early stopping may end sooner
        (rows < _FEW_ROWS, 3),
        (rows >= _ROWS_OF_A_VALUE * values, 3),
    )
    return next((epochs for holds, epochs in rules if holds), 1)
