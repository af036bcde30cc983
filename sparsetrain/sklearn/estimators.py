# SPDX-License-Identifier: Apache-2.0
"""Estimators of a label: `ClickClassifier` and `RatingRegressor`.

Columns of a frame get the roles that `sparsetrain.data.infer` finds, or those of a schema; an array
of numbers is dense.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from sparsetrain import data
from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.labels import Binary, Label, label_of
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
from sparsetrain.sklearn.tables import array_columns, free_name, named_columns, rows_and_labels
from sparsetrain.training.fit import EarlyStopping
from sparsetrain.training.load import load


@dataclass(kw_only=True, eq=False, repr=False)
class _Estimator(Trained, ABC):
    """What both estimators of a label share.

    Parameters
    ----------
    model : str or class
        A name in `sparsetrain.models.MODELS`, or a `ClickModel` of one's own.
    dim : int
        Width of the embeddings.
    model_options : dict, optional
        Other arguments of the model, such as ``{"top": (128, 64)}``.
    optimizer : str
        A name in `sparsetrain.optim.OPTIMIZERS`.
    lr : float
        Learning rate.
    optimizer_options : dict, optional
        Other arguments of the optimizer.
    epochs : int or "auto"
        As `Trainer.fit`; "auto" is 1, and 3 below 4,096 rows or where the values of all categories
        are at most one for each hundred rows. With `patience` it is 20, the most.
    batch_size : int or "auto"
        As `Trainer.fit`; "auto" is 128, of few rows so many fewer that an epoch has 32 steps, and
        at least 8; from 51,200 rows on so many more that it has 400, and at most 512.
    schema : Schema or path, optional
        Roles of the columns; by default inferred. Its label does not count.
    min_count : int
        Values rarer than this in the training rows share a row of the table.
    max_rows : int, optional
        Most rows of a table.
    patience : int, optional
        Validations without a better score after which training ends, with the best weights. Rows
        to validate on are those of `eval_set`, or a share of `validation_fraction`.
    validation_fraction : float
        Held out at random where there is `patience` and no `eval_set`.
    warm_start : bool
        Whether `fit` goes on with the weights and the encoding of the last one.
    random_state : int, RandomState or None
        Decides initial weights and the order of rows.
    target : str
        As in `Trainer`.
    verbose : bool
        Whether the progress is shown.

    Attributes
    ----------
    trainer_ : Trainer
    schema_ : Schema
    batch_size_ : int
        That of the last fit; ``n_iter_`` is the number of epochs so far.
    history_ : History
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only after a frame.
    """

    schema: Any = None
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None, eval_set: Any = None) -> Any:
        """Train for `epochs` passes.

        Parameters
        ----------
        X : DataFrame, Arrow table, dict of columns, or array (n, columns)
        y : array (n,)
        sample_weight : array (n,), optional
            A factor of 0 or more for each row's loss.
        eval_set : (X, y) or [(X, y)], optional
            Rows to validate on after each epoch.

        Warns
        -----
        DataWarning
            Of columns that are left out because their type is not read.
        """
        goes_on = self.warm_start and hasattr(self, "trainer_")
        rows = self._rows(X, y, sample_weight, new=not goes_on)
        count = len(rows[self.schema_.weights])
        held_out: Any = None
        if eval_set is not None:
            held_X, held_y = rows_and_labels(eval_set)
            labels, _ = self._labels(held_y, None, reset=False)
            columns = self._columns(held_X, reset=False)
            check_consistent_length(labels, next(iter(columns.values())))
            held_out = self._table(columns, labels, np.ones(len(labels)))
        elif self.patience is not None:
            share = self.validation_fraction
            rows, held_out = data.split_share(rows, share, seed=self._seed(), schema=self.schema_)
        return self._train(rows, count, held_out, self.epochs, new=not goes_on)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        """Train for one pass; values that the first call did not see share a row.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array, optional
            Both classes, in the first call, if its rows may lack one.
        """
        new = not hasattr(self, "trainer_")
        rows = self._rows(X, y, sample_weight, new=new, classes=classes)
        return self._train(rows, len(rows[self.schema_.weights]), None, 1, new=new)

    def save(self, folder: str | Path) -> None:
        """Write a folder that `load`, `sparsetrain.load` and the command line read."""
        check_is_fitted(self)
        self.trainer_.save(folder, extra={ESTIMATOR: kept_of(self, self._kept)})

    @classmethod
    def load(cls, folder: str | Path, **params: Any) -> Any:
        """Read what `save` wrote; `params` are those of the constructor.

        Raises
        ------
        CheckpointError
            If the folder is damaged, or holds anything but such an estimator.
        """
        made = cls(**params)
        kept = restored(folder, cls._kept)
        made._load(folder)
        require_names_of(folder, kept, made.schema_, made._label)
        for name in cls._kept.keys() & kept.keys():
            setattr(made, name, kept[name])
        return made

    def _load(self, folder: str | Path) -> None:
        own = self.model if isinstance(self.model, type) else None
        self.trainer_ = load(folder, target=self.target, model=own)
        if self.trainer_.encoder is None:
            raise CheckpointError(f"{folder} has no encoder; was it saved by an estimator?")
        self.schema_ = self.trainer_.encoder.schema

    def __getstate__(self) -> dict[str, Any]:
        state = {name: v for name, v in super().__getstate__().items() if name != "trainer_"}
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
        """Return rows to train on; `new` ones decide the schema."""
        self._model()  # a wrong name is told before data are read
        columns = self._columns(X, reset=new)
        labels, weights = self._labels(y, sample_weight, reset=new, classes=classes)
        check_consistent_length(labels, next(iter(columns.values())))
        if new:
            self._schema(columns, labels, hasattr(self, "feature_names_in_"))
        return self._table(columns, labels, weights)

    def _columns(self, X: Any, *, reset: bool) -> dict[str, Any]:
        """Return the columns by name, after scikit-learn's checks."""
        if (named := named_columns(X)) is not None:
            frame, columns = named
            validate_data(self, frame, skip_check_array=True, reset=reset)
            if not columns or not len(next(iter(columns.values()))):
                raise ValueError("Found 0 sample(s) or columns while a minimum of 1 is required.")
        else:
            X = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite="allow-nan")
            columns = array_columns(X)
        if not reset and self.constant_ is not None:
            columns[self.constant_] = np.zeros(len(next(iter(columns.values()))), np.int64)
        return columns

    def _schema(self, columns: dict[str, Any], labels: Any, is_frame: bool) -> None:
        """Find the roles of the columns; adds to `columns` a constant one if none is looked up."""
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
                found = data.infer({**columns, label: labels}, label).schema
            except ConfigError:  # there is no category
                named = {**columns, **zeros, label: labels}
                found = data.infer(named, label, categories=[constant]).schema
                self.constant_ = constant
        if self.constant_ is not None:
            columns.update(zeros)
        self.schema_ = replace(found, label=None, labels={label: self._label.kind}, weights=weight)

    def _table(self, columns: Mapping[str, Any], labels: Any, weights: Any) -> dict[str, Any]:
        names: list[Any] = [*self.schema_.labels, self.schema_.weights]
        return {**columns, **dict(zip(names, (labels, weights), strict=True))}

    def _train(self, rows: Any, count: int, held_out: Any, epochs: Any, *, new: bool) -> Any:
        if new:
            encoder = self._encoder(rows)
            made, options = self._model()
            model = made.for_encoder(encoder, dim=self.dim, **options)
            self.trainer_ = self._trainer(model, encoder)
        stopping = EarlyStopping(patience=self.patience) if held_out is not None else None
        assert self.trainer_.encoder is not None
        values = sum(self.trainer_.encoder.tables.values())
        epochs = epochs_of(epochs, count, values, self.patience)
        self._fit(rows, count, validation=held_out, epochs=epochs, early_stopping=stopping)
        self.n_iter_ = self.trainer_.epochs
        return self

    def _encoder(self, rows: Any) -> data.Encoder:
        return data.Encoder.fit(
            rows,
            min_count=self.min_count,
            max_rows=self.max_rows,
            nan="missing",
            treat_as="raw",
            schema_file=self.schema_,
        )

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self.trainer_.predict(self._columns(X, reset=False))

    @property
    @abstractmethod
    def _label(self) -> Label:
        """The kind of label that the trainer learns."""

    @abstractmethod
    def _labels(
        self, y: Any, sample_weight: Any, *, reset: bool, classes: Any = None
    ) -> tuple[Any, Any]:
        """Return what the trainer learns of `y`, and the weights of rows."""


@dataclass(kw_only=True, eq=False, repr=False)
class ClickClassifier(ClassifierMixin, _Estimator):
    """Predicts one of two classes, such as a click."""

    class_weight: Any = None

    _label = Binary()
    _kept = {**KEPT, "classes_": CLASSES}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of both classes, (n, 2) float64."""
        second = self._scores(X).astype(np.float64)
        return np.stack([1 - second, second], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """Return the more probable class of each row, (n,)."""
        is_second = self._scores(X) > 0.5
        return self.classes_[is_second.astype(np.intp)]

    def _labels(
        self, y: Any, sample_weight: Any, *, reset: bool, classes: Any = None
    ) -> tuple[Any, Any]:
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        if reset:
            self.classes_ = np.unique(y if classes is None else classes)
            if len(self.classes_) > 2:
                raise ValueError(
                    "Only binary classification is supported. The type of the target is "
                    f"{type_of_target(y)}."
                )
            if len(self.classes_) < 2:
                raise ValueError("y has one class; a classifier needs rows of two")
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            raise ValueError(
                f"y holds {y[unknown][0]!r}, which is none of {self.classes_.tolist()}"
            )
        weights = _check_sample_weight(sample_weight, y, ensure_non_negative=True)
        if self.class_weight is not None:
            weights = weights * compute_sample_weight(self.class_weight, y)
        return (y == self.classes_[1]).astype(np.float32), weights


@dataclass(kw_only=True, eq=False, repr=False)
class RatingRegressor(RegressorMixin, _Estimator):
    """Predicts a number, such as a rating; it is shifted and scaled for the training.

    `label` says how: "real" predicts the number; "count" the mean of a number that counts, by
    Poisson's loss and as it is; "quantiles:0.1,0.9" these quantiles of the number.
    """

    label: Any = "real"

    _kept = {**KEPT, "y_center_": NUMBER, "y_scale_": POSITIVE}

    @property
    def _label(self) -> Label:
        return label_of(self.label)

    def predict(self, X: Any) -> np.ndarray:
        """Return a number for each row, (n,) float64, or (n, Q) of several quantiles."""
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
    """Return the schema of columns of numbers, all shifted and scaled."""
    laws = {}
    for name, values in columns.items():
        there = values[np.isfinite(values)].astype(np.float64)
        scale = float(np.std(there)) if len(there) else 0.0
        laws[name] = data.Linear(float(np.mean(there)) if len(there) else 0.0, scale or 1.0)
    return data.Schema(dense=tuple(columns), categories=(constant,), linear=laws)
