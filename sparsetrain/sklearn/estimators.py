# SPDX-License-Identifier: Apache-2.0
"""Estimators of a label: `ClickClassifier` and `RatingRegressor`.

Columns of a frame get their roles from `sparsetrain.data.infer` or a schema; columns of a numeric
array are dense.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from sparsetrain import data
from sparsetrain.data.infer import name_columns
from sparsetrain.errors import CheckpointError, ConfigError, DataWarning
from sparsetrain.labels import Binary, Classes, Label, label_of
from sparsetrain.labels.label_metrics import gains
from sparsetrain.sklearn.eval_sets import eval_sets, validated
from sparsetrain.sklearn.parameters import Trained, epochs_of
from sparsetrain.sklearn.saved import (
    CLASSES,
    ESTIMATOR,
    KEPT,
    NUMBER,
    POSITIVE,
    Field,
    kept_of,
    require_names_of,
    restored,
    saved_files,
    unpacked,
)
from sparsetrain.sklearn.tables import array_columns, array_names, free_name, named_columns
from sparsetrain.training.fit import EarlyStopping
from sparsetrain.training.importance import permutation_importance
from sparsetrain.training.load import load


@dataclass(kw_only=True, eq=False, repr=False)
class _Estimator(Trained, ABC):
    """Base class of estimators of a label.

    Parameters
    ----------
    model : str or class
        A name in `sparsetrain.models.MODELS`, or your own `ClickModel` class.
    dim : int
        Width of the embeddings.
    model_options : dict, optional
        Further arguments of the model, such as ``{"top": (128, 64)}``.
    optimizer : str
        A name in `sparsetrain.optim.OPTIMIZERS`.
    lr : float
        Learning rate.
    optimizer_options : dict, optional
        Further arguments of the optimizer.
    epochs : int or "auto"
        As in `Trainer.fit`. "auto" is 1, or 3 for fewer than 4,096 rows or if all categories
        together have at most one value per hundred rows. With `patience`, "auto" allows up to 20
        epochs.
    batch_size : int or "auto"
        As in `Trainer.fit`. "auto" is 128. With few rows it is smaller, for 32 steps per epoch, but
        at least 8; from 51,200 rows on it is larger, for 400 steps per epoch, but at most 512.
    schema : Schema or path, optional
        Roles of the columns; inferred by default. A label in the schema is ignored.
    numbers : str or None
        How numbers are used, as in `data.with_buckets`; by default "binned", or "scaled" for a
        model class of your own or a schema that has buckets. `partial_fit` learns the boundaries of
        bins from the rows of its first call.
    min_count : int
        Values with fewer training rows than this share a row of the table.
    max_rows : int, optional
        Largest number of rows of a table.
    patience : int, optional
        Stop after this many validations without a better score, and keep the best weights.
        Validation rows come from `eval_set`, or else are split off by `validation_fraction`.
    validation_fraction : float
        Share of rows to hold out at random if `patience` is set without an `eval_set`.
    warm_start : bool
        Whether `fit` continues from the weights and the encoding of the last fit.
    random_state : int, RandomState or None
        Seed of the initial weights and of the order of rows.
    target : str
        As in `Trainer`.
    verbose : bool
        Whether to show progress.

    Attributes
    ----------
    trainer_ : Trainer
    schema_ : Schema
    batch_size_ : int
        The batch size of the last fit; ``n_iter_`` is the number of epochs so far.
    history_ : History
    evals_result_ : dict
        Name of an evaluation set -> name of a score -> its values, one per epoch.
    feature_importances_ : ndarray (n_features_in_,) float64
        Increase of the loss if a column is shuffled; only after a fit with validation rows.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only after a fit on a frame.
    """

    schema: Any = None
    numbers: Any = None
    min_count: int = 2
    max_rows: int | None = None
    patience: int | None = None
    validation_fraction: float = 0.1
    warm_start: bool = False

    _kept: ClassVar[Mapping[str, Field]]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        tags.non_deterministic = False
        return tags

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        eval_set: Any = None,
        eval_names: Sequence[str] | None = None,
    ) -> Any:
        """Train for `epochs` passes.

        Parameters
        ----------
        X : DataFrame, Arrow table, dict of columns, or array (n, columns)
        y : array (n,)
        sample_weight : array (n,), optional
            A factor >= 0 for each row's loss.
        eval_set : list of (X, y), or one pair, optional
            Rows to score after each epoch. The first pair that is not `X` and `y` themselves is the
            validation set for `patience`.
        eval_names : list of str, optional
            Names of the pairs in `evals_result_`; by default "training", "valid_0" and so on.

        Warns
        -----
        DataWarning
            If columns are left out because their type is not supported or they cannot help.
        """
        sets = eval_sets(eval_set, eval_names, X, y)
        goes_on = self.warm_start and hasattr(self, "trainer_")
        rows = self._rows(X, y, sample_weight, new=not goes_on)
        count = len(rows[self.schema_.weights])
        held_out: dict[str, Any] = {name: self._rows_to_score(*pair) for name, pair in sets.items()}
        watched = validated(sets, X, y)
        if watched is None and self.patience is not None:
            share, watched = self.validation_fraction, "valid_0"
            rows, other = data.split_share(rows, share, seed=self._seed(), schema=self.schema_)
            held_out[watched] = other
        return self._train(rows, count, self.epochs, held_out, watched, new=not goes_on)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        """Train for one epoch; values that the first call did not see share a row.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array, optional
            All classes; needed in the first call if its rows may lack a class.
        """
        new = not hasattr(self, "trainer_")
        rows = self._rows(X, y, sample_weight, new=new, classes=classes)
        return self._train(rows, len(rows[self.schema_.weights]), 1, new=new)

    @property
    def feature_importances_(self) -> np.ndarray:
        """Increase of the loss when a column is shuffled, (n_features_in_,) float64.

        It is measured on the first 20,000 validation rows of `fit`: from `eval_set`, or held out
        for `patience`. The first access computes it, with one evaluation per column.
        `sparsetrain.permutation_importance` does the same with any rows.
        """
        check_is_fitted(self)
        found: np.ndarray | None = getattr(self, "_importances", None)
        if found is None:
            if getattr(self, "_held_out", None) is None:
                raise AttributeError(
                    "feature_importances_ needs validation rows: fit(..., eval_set=[(X, y)]), or "
                    "set patience, which holds rows out; a loaded estimator has no such rows"
                )
            rises = permutation_importance(self.trainer_, self._held_out)
            names = getattr(self, "feature_names_in_", None)
            names = array_names(self.n_features_in_) if names is None else names
            found = np.array([rises.get(name, 0.0) for name in names]) * self._unit
            self._importances = found
        return found

    def save(self, folder: str | Path) -> None:
        """Write a folder that `load`, `sparsetrain.load` and the command line can read."""
        check_is_fitted(self)
        self.trainer_.save(folder, extra={ESTIMATOR: kept_of(self, self._kept)})

    @classmethod
    def load(cls, folder: str | Path, **params: Any) -> Any:
        """Read a folder written by `save`; `params` are arguments of the constructor.

        Raises
        ------
        CheckpointError
            If the folder is damaged, or was not saved by this class of estimator.
        """
        made = cls(**params)
        kept = restored(folder, cls._kept)
        made._load(folder)
        for name in cls._kept.keys() & kept.keys():
            setattr(made, name, kept[name])
        require_names_of(folder, kept, made.schema_, made._label)
        return made

    def _load(self, folder: str | Path) -> None:
        own = self.model if isinstance(self.model, type) else None
        self.trainer_ = load(folder, target=self.target, model=own)
        if self.trainer_.encoder is None:
            raise CheckpointError(f"{folder} has no encoder; was it saved by an estimator?")
        self.schema_ = self.trainer_.encoder.schema

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("trainer_", "_held_out")
        state = {name: v for name, v in super().__getstate__().items() if name not in left_out}
        if hasattr(self, "trainer_"):
            state["_saved"] = saved_files(self.save)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("_saved", None)
        super().__setstate__(state)
        if saved is not None:
            with unpacked(saved) as folder:
                self._load(folder)

    def _rows(self, X: Any, y: Any, sample_weight: Any, *, new: bool, classes: Any = None) -> Any:
        """Return rows to train on; if `new`, the schema is inferred from them."""
        self._model()  # a wrong name raises before data are read
        columns = self._columns(X, reset=new)
        labels, weights = self._labels(y, sample_weight, reset=new, classes=classes)
        check_consistent_length(labels, next(iter(columns.values())))
        if new:
            self._schema(columns, labels, hasattr(self, "feature_names_in_"))
        return self._table(columns, labels, weights)

    def _rows_to_score(self, X: Any, y: Any) -> dict[str, Any]:
        """Return labelled rows of `eval_set`, all with weight 1."""
        labels, _ = self._labels(y, None, reset=False)
        columns = self._columns(X, reset=False)
        check_consistent_length(labels, next(iter(columns.values())))
        return self._table(columns, labels, np.ones(len(labels)))

    def _columns(self, X: Any, *, reset: bool, least: int = 1) -> dict[str, Any]:
        """Return the columns by name, after scikit-learn's checks, with at least `least` rows."""
        if (named := named_columns(X)) is not None:
            frame, columns = named
            validate_data(self, frame, skip_check_array=True, reset=reset)
            if not columns or len(next(iter(columns.values()))) < least:
                raise ValueError("Found 0 sample(s) or columns while a minimum of 1 is required.")
        else:
            X = validate_data(
                self,
                X,
                reset=reset,
                dtype=None,
                ensure_all_finite="allow-nan",
                ensure_min_samples=least,
            )
            columns = array_columns(X)
        if not reset and self.constant_ is not None:
            columns[self.constant_] = np.zeros(len(next(iter(columns.values()))), np.int64)
        return columns

    def _schema(self, columns: dict[str, Any], labels: Any, is_frame: bool) -> None:
        """Find the columns' roles; add a constant category to `columns` if there is no category."""
        label, weight, constant = (
            free_name(name, columns) for name in ("label", "weight", "constant")
        )
        zeros = {constant: np.zeros(len(labels), np.int64)}
        self.constant_ = None
        if self.schema is not None:
            found = data.Schema.read(self.schema)
        elif not is_frame and all(isinstance(v, np.ndarray) for v in columns.values()):
            found, self.constant_ = _of_numbers(columns, constant), constant
        else:
            try:
                inferred = data.infer({**columns, label: labels}, label)
            except ConfigError:  # there is no category
                named = {**columns, **zeros, label: labels}
                inferred = data.infer(named, label, categories=[constant])
                self.constant_ = constant
            found = inferred.schema
            if inferred.useless:
                text = f"columns left out, as they cannot help: {name_columns(inferred.useless)}"
                warnings.warn(f"{text}; to keep them, pass schema=", DataWarning, stacklevel=4)
        if self.constant_ is not None:
            columns.update(zeros)
        self.schema_ = replace(found, label=None, labels={label: self._label.kind}, weights=weight)

    def _table(self, columns: Mapping[str, Any], labels: Any, weights: Any) -> dict[str, Any]:
        names: list[Any] = [*self.schema_.labels, self.schema_.weights]
        return {**columns, **dict(zip(names, (labels, weights), strict=True))}

    def _train(
        self,
        rows: Any,
        count: int,
        epochs: Any,
        held_out: Mapping[str, Any] = MappingProxyType({}),
        watched: str | None = None,
        *,
        new: bool,
    ) -> Any:
        """Train; score all sets of `held_out` rows, and validate on the set named `watched`."""
        if new:
            encoder = self._encoder(rows)
            made, options = self._model()
            model = made.for_encoder(encoder, dim=self.dim, **options)
            self.trainer_ = self._trainer(model, encoder)
        self._held_out = held_out.get(watched or "")
        self.__dict__.pop("_importances", None)
        self.evals_result_: dict[str, dict[str, list[float | None]]] = {n: {} for n in held_out}
        others = {name: rows for name, rows in held_out.items() if name != watched}

        def record_scores(epoch: Mapping[str, Any]) -> None:
            for name, into in self.evals_result_.items():
                scores = self.trainer_.evaluate(others[name]) if name in others else epoch["valid"]
                for score in (name for name in scores if name in gains()):
                    value = scores[score]
                    into.setdefault(score, []).append(value and value * self._unit)

        assert self.trainer_.encoder is not None
        values = sum(self.trainer_.encoder.tables.values())
        self._fit(
            rows,
            count,
            validation=self._held_out,
            epochs=epochs_of(epochs, count, values, self.patience),
            early_stopping=EarlyStopping(patience=self.patience) if watched else None,
            on_epoch=record_scores,
        )
        self.n_iter_ = self.trainer_.epochs
        return self

    def _encoder(self, rows: Any) -> data.Encoder:
        made, _ = self._model()
        return data.Encoder.fit(
            rows,
            min_count=self.min_count,
            max_rows=self.max_rows,
            nan="missing",
            treat_as="raw",
            schema=self.schema_,
            numbers=self.numbers or ("best" if made.bins_numbers() else "scaled"),
        )

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        columns, model = self._columns(X, reset=False, least=0), self.trainer_.model
        if not len(next(iter(columns.values()))):
            return model.all_labels.predictions(np.empty((0, model.num_logits), np.float32))
        return self.trainer_.predict(columns)

    @property
    def _unit(self) -> float:
        """Factor from the trainer's scores to scores in units of `y`."""
        return 1.0

    @property
    @abstractmethod
    def _label(self) -> Label:
        """The kind of label that the trainer learns."""

    @abstractmethod
    def _labels(
        self, y: Any, sample_weight: Any, *, reset: bool, classes: Any = None
    ) -> tuple[Any, Any]:
        """Return the labels that the trainer learns, and the weights of rows."""


@dataclass(kw_only=True, eq=False, repr=False)
class ClickClassifier(ClassifierMixin, _Estimator):
    """Predicts one of two or more classes, such as a click or none."""

    class_weight: Any = None

    _kept = {**KEPT, "classes_": CLASSES}

    @property
    def _label(self) -> Label:
        return Binary() if len(self.classes_) == 2 else Classes(len(self.classes_))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the C classes, (n, C) float64."""
        found = self._scores(X).astype(np.float64)
        return found if found.ndim == 2 else np.stack([1 - found, found], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row, (n,); the first if several tie."""
        place = self.predict_proba(X).argmax(axis=1)
        return self.classes_[place]

    def _labels(
        self, y: Any, sample_weight: Any, *, reset: bool, classes: Any = None
    ) -> tuple[Any, Any]:
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        if reset:
            self.classes_ = np.unique(y if classes is None else classes)
            if len(self.classes_) < 2:
                raise ValueError("y has one class; a classifier needs at least two")
        place = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unknown = self.classes_[place] != y
        if unknown.any():
            raise ValueError(f"y has {y[unknown][0]!r}, which is not in {self.classes_.tolist()}")
        weights = _check_sample_weight(sample_weight, y, ensure_non_negative=True)
        if self.class_weight is not None:
            weights = weights * compute_sample_weight(self.class_weight, y)
        return place.astype(np.float32), weights


@dataclass(kw_only=True, eq=False, repr=False)
class RatingRegressor(RegressorMixin, _Estimator):
    """Predicts a number, such as a rating; training shifts and scales it.

    `label` decides the kind of prediction: "real" is the number itself; "count" is the mean of a
    count, by Poisson's loss and without scaling; "quantiles:0.1,0.9" are these quantiles.
    """

    label: Any = "real"

    _kept = {**KEPT, "y_center_": NUMBER, "y_scale_": POSITIVE}

    @property
    def _label(self) -> Label:
        return label_of(self.label)

    @property
    def _unit(self) -> float:
        return self.y_scale_

    def predict(self, X: Any) -> np.ndarray:
        """Return a number for each row, (n,) float64, or Q quantiles, (n, Q)."""
        return self._scores(X).astype(np.float64) * self.y_scale_ + self.y_center_

    def _labels(
        self, y: Any, sample_weight: Any, *, reset: bool, classes: Any = None
    ) -> tuple[Any, Any]:
        y = column_or_1d(y, dtype=np.float64, warn=True)
        assert_all_finite(y, input_name="y")
        if reset:
            self.y_center_, self.y_scale_ = 0.0, 1.0
            if self._label.scales:
                self.y_center_, self.y_scale_ = float(np.mean(y)), float(np.std(y)) or 1.0
        weights = _check_sample_weight(sample_weight, y, ensure_non_negative=True)
        return ((y - self.y_center_) / self.y_scale_).astype(np.float32), weights


for _made in (ClickClassifier, RatingRegressor):
    _made.__doc__ = f"{_made.__doc__}{(_Estimator.__doc__ or '').partition('.')[2]}"


def _of_numbers(columns: Mapping[str, np.ndarray], constant: str) -> data.Schema:
    """Return a schema for numeric columns, all shifted and scaled."""
    laws = {}
    for name, values in columns.items():
        there = values[np.isfinite(values)].astype(np.float64)
        scale = float(np.std(there)) if len(there) else 0.0
        laws[name] = data.Linear(float(np.mean(there)) if len(there) else 0.0, scale or 1.0)
    return data.Schema(dense=tuple(columns), categories=(constant,), linear=laws)
