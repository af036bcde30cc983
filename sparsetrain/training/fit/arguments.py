# SPDX-License-Identifier: Apache-2.0
"""Arguments of a run, the subset that a resumed run must repeat, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsetrain.errors import ConfigError, DataError, nearest
from sparsetrain.labels.label import LABELS, Labels
from sparsetrain.labels.label_metrics import gains, score_names
from sparsetrain.metrics.scores import base_name
from sparsetrain.system.argument_checks import (
    is_number,
    require_int,
    require_non_negative,
    require_type,
)
from sparsetrain.training.fit.plot import Plot, plot_of
from sparsetrain.training.run import Run


def is_defined(score: float | None) -> bool:
    """Return whether a score is neither None nor NaN."""
    return score is not None and score == score


@dataclass(frozen=True)
class EarlyStopping:
    """Rule that ends a run before its last epoch, and the score that ranks its validations.

    With `patience`, `fit` ends with the weights of the best validation; without it, or if `stop`
    ended training, with the last weights. If there is no run folder, the best weights and slots are
    kept in memory.

    Parameters
    ----------
    monitor : str, optional
        The validation score to monitor. Binary labels: logloss, ne, auc, gauc (with groups),
        calibration (best near 1) or accuracy; real labels: rmse or mae; classes: logloss, ne or
        accuracy; counts: deviance; quantiles: pinball; several labels: ``NAME.auc`` and so on, or
        loss; rankings: hr@10, ndcg@10 and so on. The default is the label's main score, such as
        logloss or rmse; loss for several labels; ndcg at the first k for rankings.
    patience : int, optional
        Training ends after this many validations without a better score; with None it never ends
        early.
    min_delta : float
        A better score must exceed the best by more than this.
    """

    monitor: str | None = None
    patience: int | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.monitor is not None and base_name(self.monitor) not in gains():
            raise ConfigError(f"monitor is {self.monitor!r}; it must be one of {list(gains())}")
        if self.patience is not None:
            object.__setattr__(self, "patience", require_int("patience", self.patience))
        object.__setattr__(self, "min_delta", require_non_negative("min_delta", self.min_delta))

    def of_labels(
        self, labels: Labels, grouped: bool = False, k: int | Sequence[int] = 10
    ) -> EarlyStopping:
        """Return the rule with `monitor` set to a score that labels of these kinds have.

        Parameters
        ----------
        labels, grouped
            As in `LabelMetrics`.
        k
            As in `RankingMetrics`.

        Raises
        ------
        ConfigError
            If there is no such score for these labels.
        """
        known = [name for name in score_names(labels, grouped, k) if base_name(name) in gains()]
        default = next(name for name in known if name.partition("@")[0] == labels.watched)
        monitor = self.monitor or default
        if monitor not in known:
            fix = "; gauc needs group_by" if base_name(monitor) == "gauc" and not grouped else ""
            raise ConfigError(f"monitor is {monitor!r}; the scores are {', '.join(known)}{fix}")
        return replace(self, monitor=monitor)

    def is_better(self, score: float | None, best: float | None) -> bool:
        """Return whether `score` is better than `best`; an undefined score never is."""
        if score is None or not is_defined(score):
            return False
        if best is None:
            return True
        gain = gains()[base_name(self.monitor or "loss")]
        return gain(score) - gain(best) > self.min_delta


@dataclass(frozen=True)
class ReduceLROnPlateau:
    """Reduce the learning rate when validations stop improving.

    The factor multiplies the rate of every parameter, after any schedule, for the rest of the run;
    a resumed run keeps it. `EarlyStopping` sets the score to monitor and the least improvement.

    Parameters
    ----------
    factor : float
        Factor of the learning rate, above 0 and below 1.
    patience : int
        The rate is reduced each time that this many validations in a row bring no better score.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    factor: float = 0.1
    patience: int = 1

    def __post_init__(self) -> None:
        if not is_number(self.factor) or not 0 < self.factor < 1:
            raise ConfigError(
                f"ReduceLROnPlateau: factor is {self.factor!r}; it must be above 0 and below 1"
            )
        object.__setattr__(self, "patience", require_int("patience", self.patience))

    def is_due(self, since_best: int) -> bool:
        """Return whether to reduce the rate after this many validations without a better score."""
        return since_best > 0 and since_best % self.patience == 0


_COUNTS = ("batch_size", "validate_every", "validate_epochs")


@dataclass(frozen=True)
class FitArguments:
    """The settings of one call of `Trainer.fit`.

    Attributes
    ----------
    until : int
        Epoch at which training ends, counted from the start of the run.
    batch_size : int
    seed : int or None
        Seed of the order of the rows; None keeps the order of the data.
    validate_every : int or None
        Steps between validations; None validates only at the end of epochs.
    validate_epochs : int
        Epochs between validations; the last epoch is always validated.
    k : int or sequence of int
        Cutoffs of ranking metrics in validations, as in `RankingMetrics`.
    options : mapping
        Further settings that affect the result of a step, by the names of the trainer's arguments.
    group_by : str or None
        Feature with ids that group the validation rows.
    """

    until: int
    batch_size: int
    seed: int | None
    validate_every: int | None = None
    validate_epochs: int = 1
    k: int | Sequence[int] = 10
    early_stopping: EarlyStopping = EarlyStopping()
    reduce_lr: ReduceLROnPlateau | None = None
    check_numerics: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    group_by: str | None = None

    def __post_init__(self) -> None:
        numbers: dict[str, Any] = {name: getattr(self, name) for name in _COUNTS}
        for name, value in numbers.items():
            if value is not None or name != "validate_every":
                object.__setattr__(self, name, require_int(name, value))

    @property
    def validation_decides(self) -> bool:
        """Whether the weights depend on validations."""
        return self.early_stopping.patience is not None or self.reduce_lr is not None

    def require_defined(self, scores: Mapping[str, Any]) -> None:
        """Raise if the monitored score is undefined on the validation rows but decides the weights.

        Raises
        ------
        DataError
            If the weights depend on validations and the monitored score is undefined.
        """
        monitor = str(self.early_stopping.monitor)
        if self.validation_decides and scores[monitor] is None:
            raise DataError(
                f"validation: {monitor} is not defined for these rows, but early stopping or "
                "reduce_lr monitors it: auc, gauc and ne need rows of both classes, a ranking "
                "needs wanted items; change the validation rows, or set a different monitor"
            )

    def fixed(self) -> dict[str, Any]:
        """Return the settings that affect the weights, by `fit`'s argument names."""
        return {
            "batch_size": self.batch_size,
            "shuffle": self.seed is not None,
            "validate_every": self.validate_every,
            "validate_epochs": self.validate_epochs,
            "early_stopping": asdict(self.early_stopping),
            "reduce_lr": None if self.reduce_lr is None else asdict(self.reduce_lr),
            **self.options,
            "group_by": self.group_by,
        }


if TYPE_CHECKING:
    import pandas

# Scores shown while a model is trained; with several labels, a label's name precedes them.
_SHOWN = {"loss", "auc", "hr", "ndcg", *(label.watched for label in LABELS.values())}


class History(dict[str, Any]):
    """The result of a run; `Trainer.fit` describes its entries.

    ``print`` and a notebook show `frame`; `plot` draws its columns.
    """

    @property
    def frame(self) -> pandas.DataFrame:
        """One row per epoch: rows, seconds, the loss, and the validation scores."""
        import pandas

        rows = self._rows
        return pandas.DataFrame(rows, index=pandas.RangeIndex(1, len(rows) + 1, name="epoch"))

    def plot(self, *scores: str) -> Plot:
        """Return charts of columns of `frame` by epoch; a notebook shows them.

        By default these are the losses and the main validation scores.

        Raises
        ------
        ConfigError
            If there is no such column.
        """
        rows = self._rows
        known = [*dict.fromkeys(name for row in rows for name in row)]
        for name in scores:
            if name not in known:
                raise ConfigError(f"plot: no score {name!r}; {nearest(name, known)}")
        usual = [name for name in known if base_name(name.removeprefix("valid ")) in _SHOWN]
        return plot_of(rows, scores or usual)

    @property
    def _rows(self) -> list[dict[str, Any]]:
        return [
            {**{k: v for k, v in epoch.items() if k != "valid"}, **_named(epoch.get("valid") or {})}
            for epoch in self["epochs"]
        ]

    def __str__(self) -> str:
        return str(self.frame)

    def _repr_html_(self) -> str:
        return self.frame.to_html()


def _named(scores: Mapping[str, Any]) -> dict[str, Any]:
    return {f"valid {name}": value for name, value in scores.items()}


def describe_scores(scores: Mapping[str, Any]) -> str:
    """Return the main scores of a validation, in one line."""
    shown = {k: v for k, v in scores.items() if base_name(k) in _SHOWN and v is not None}
    return "valid " + ", ".join(f"{name} {value:.4f}" for name, value in shown.items())


def check_fit_arguments(
    validation: Any,
    stop: Any,
    on_epoch: Any,
    on_log: Any,
    run: Any,
    validate_every: Any,
    early_stopping: Any,
    reduce_lr: Any,
) -> None:
    """Refuse arguments of a wrong type, and settings that need validation rows if there are none.

    Raises
    ------
    ConfigError
        If an argument is invalid; the message names a valid value.
    """
    if stop is not None and not callable(stop):
        raise ConfigError(f"stop is {stop!r:.60}; give a function without arguments")
    for name, callback in {"on_epoch": on_epoch, "on_log": on_log}.items():
        if callback is not None and not callable(callback):
            raise ConfigError(f"{name} is {callback!r:.60}; give a function of a dict")
    require_type("run", run, (Run, str, Path), "a Run, or the path of its folder")
    fix = "an EarlyStopping, such as EarlyStopping(patience=3)"
    require_type("early_stopping", early_stopping, EarlyStopping, fix)
    fix = "a ReduceLROnPlateau, such as ReduceLROnPlateau(0.1)"
    require_type("reduce_lr", reduce_lr, ReduceLROnPlateau, fix)
    needing = {
        "validate_every": validate_every,
        "early_stopping": early_stopping and early_stopping.patience,
        "reduce_lr": reduce_lr,
    }
    for name, value in needing.items():
        if validation is None and value is not None:
            raise ConfigError(f"{name} needs validation rows: fit(..., validation=...)")
