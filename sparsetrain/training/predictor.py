# SPDX-License-Identifier: Apache-2.0
"""`Predictor`: a model with its parameters, for scores and predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.backend import backend_of
from sparsetrain.checkpoint import Saved
from sparsetrain.compiler.dead_rows import compute_repeated_once, repeated_arguments
from sparsetrain.compiler.precision.arithmetic import Arithmetic
from sparsetrain.compiler.program import Program
from sparsetrain.data import Batch, Dataset, Encoder
from sparsetrain.data.encode.few_rows import encode_few
from sparsetrain.errors import ConfigError
from sparsetrain.models.functions import METHODS
from sparsetrain.models.model_checks import (
    check_group_feature,
    check_labels_of,
    export_checked,
    require_loadable,
    table_format_of,
)
from sparsetrain.runtime.targets import device_of
from sparsetrain.runtime.tensors import to_device
from sparsetrain.system.html import describe
from sparsetrain.system.locks import new_lock, synchronized
from sparsetrain.tables.collection import Tables
from sparsetrain.tables.state_dict import named_tables, require_own_names
from sparsetrain.tables.table import Table
from sparsetrain.training import retrieval, scores
from sparsetrain.training.processes import ALONE, OneProcess, together, whole
from sparsetrain.training.state import TrainingState, fill_


class Predictor:
    """A model that evaluates, predicts and recommends; see `Trainer` for the parameters.

    Threads may share it: they read and check batches in parallel, and run kernels one at a time.
    """

    def __init__(
        self,
        model: Any,
        target: Any,
        encoder: Encoder | None,
        arithmetic: Arithmetic,
        seed: int = 0,
        *,
        initialize: bool,
        parallel: OneProcess = ALONE,
    ) -> None:
        self.parallel = parallel
        self.model, self.encoder, self.target = model, encoder, target
        self.backend = backend_of(target)
        self.precision, self.arithmetic = arithmetic.name, arithmetic
        self.steps = self.epochs = 0
        self._lock = new_lock()  # held by the thread that reads or writes weights
        table_format_of(model).require_target(target)
        require_loadable(model)
        if encoder is not None:
            model.bind(encoder)
        check_labels_of(model, encoder)
        self._module = export_checked(model)
        self._programs: dict[str, Program] = {}
        params = parallel.initialize(model, seed, initialize)
        require_own_names(type(model).__name__, params, model.tables())
        parts, device = named_tables(parallel.tables(model)), device_of(target)
        held = {}
        for name in list(params):  # one at a time, so that never all exist twice
            weight = to_device(params.pop(name), device, f"parameter {name!r}")
            held[name] = Table(name, weight, named=parts.get(name))
        self.params = Tables(held)

    def __repr__(self) -> str:
        what = ", ".join([type(self.model).__name__, *self._described()])
        return f"<{type(self).__name__}: {what}, {self.steps} steps, on {self.target.kind.name}>"

    def _repr_html_(self) -> str:
        parts = [own for table in self.params.each() for own in table.named.values()]
        facts = {
            "model": ", ".join([type(self.model).__name__, *self._described()]),
            "tables": f"{len(parts)} of {sum(own.stop - own.start for own in parts):,} rows",
            "steps": self.steps,
            "epochs": self.epochs,
            "precision": self.precision,
            "target": self.target.kind.name,
            "encoder": self.encoder and self.encoder.layout,
        }
        return describe(type(self).__name__, facts)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: save it to a folder and load "
            "that, or use its state_dict()"
        )

    def _described(self) -> list[str]:
        """Return the parts of `repr` that follow the model's class."""
        return []

    @cached_property
    def _logits(self) -> Program:
        return self._program("logits")

    @cached_property
    def _repeated(self) -> list[str]:
        """Arguments of `_logits` in which runs of equal rows appear once."""
        return repeated_arguments(self._logits.arguments)

    def _program(self, function: str) -> Program:
        """Return a function of the model; its first call compiles it."""
        if function not in self.model.functions:
            raise ConfigError(
                f"{type(self.model).__name__} has no {METHODS[function]}, so it cannot score"
            )
        if function not in self._programs:
            module = self._module
            if function == "logits":
                module = compute_repeated_once(module, function)
            self._programs[function] = Program(module, function, self.target, self.arithmetic)
        return self._programs[function]

    def evaluate(
        self,
        data: Any,
        *,
        batch_size: int = 4096,
        group_by: str | None = None,
        k: int | Sequence[int] = 10,
        negatives: int | np.ndarray | None = None,
        negative_weights: np.ndarray | None = None,
        by_weights: bool = False,
    ) -> dict[str, Any]:
        """Compute scores of labelled data, or ranking metrics for a model of queries and items.

        Parameters
        ----------
        data : any source that `fit` accepts
        batch_size : int
            Ignored for rankings, since the number of items then determines it.
        group_by : str, optional
            A feature with one id in each row, such as the user. Rows with the same id form a group,
            and each binary label also gets the scores of `GroupedAUC`. Values that share an id,
            such as rare values, form one group.
        k : int or sequence of int
            Cutoffs of ranking metrics.
        negatives : int or ndarray (rows, n) of integers, optional
            Rank a row's wanted item among this number of randomly drawn unseen items (the same in
            every call), or among the items with these ids; by default, among all items that are not
            in the row's history.
        negative_weights : ndarray (V,), optional
            Relative probabilities of drawing the items, such as their counts; uniform by default.
        by_weights : bool
            Weight rows by the encoder's weight column; this affects all scores of labels except
            ``rows`` and the grouped scores.

        Returns
        -------
        dict
            For one binary label: ``auc`` and its error bound ``auc_bound``, ``logloss``, ``ne``
            (normalized entropy), ``calibration``, ``accuracy``, ``rows``, ``constant_logloss`` and
            ``positive_rate``. For labels of other kinds: the scores of their metrics, such as
            `RegressionMetrics`. For several labels: ``NAME.auc`` and so on, with ``loss`` and
            ``rows``. Without labels: the scores of `RankingMetrics`, such as ``ndcg@10``, and
            ``pop_ndcg@10`` and so on, the same scores for items ranked by how often they occur in
            the rows' histories. A wanted value without a row of its own, rare or unknown to the
            encoder, counts as never recommended; null values are ignored.

        Raises
        ------
        ConfigError
            If no feature is named `group_by`.
        NumericalError
            If a score is NaN or infinite.
        """
        check_group_feature(self.model, group_by)
        given = k != 10 or negatives is not None or negative_weights is not None
        if self.model.all_labels and given:
            raise ConfigError("evaluate: k and negatives need a model that ranks items")
        if by_weights and not self.model.all_labels:
            raise ConfigError("evaluate: by_weights needs a model that predicts labels")
        dataset = self._dataset(data, read_weights=by_weights)
        found = self._evaluate(
            dataset,
            batch_size=batch_size,
            group_by=group_by,
            k=k,
            negatives=negatives,
            negative_weights=negative_weights,
            by_weights=by_weights,
            floor=True,
        )
        assert found is not None
        if dataset is not data:  # the caller can inspect a Dataset of its own
            dataset._warn_of_unknown()
        return found

    def _evaluate(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        group_by: str | None = None,
        stop: Callable[[], bool] | None = None,
        by_weights: bool = False,
        **ranking: Any,
    ) -> dict[str, Any] | None:
        """Return the scores, or None if `stop` returned True between two batches."""
        if not self.model.all_labels:
            return retrieval.evaluate(self, dataset, **ranking, stop=stop)
        return scores.evaluate(self, dataset, batch_size, group_by, stop, by_weights)

    def predict(self, data: Any, *, batch_size: int = 4096) -> np.ndarray:
        """Return predictions (rows,) float32 in the order of the rows; labels are not needed.

        These are probabilities of a binary label, values of a real label or means of counts; (rows,
        C) probabilities of C classes; (rows, Q) quantiles; for several labels, all of these side by
        side. Without labels, they are the scores of each row's wanted item; if the data have no
        column of wanted items, (rows, V) scores of all items, -inf for ids that are not items.

        Raises
        ------
        NumericalError
            If a score is NaN or infinite.
        """
        labels = bool(self.model.all_labels)
        few = encode_few(self.encoder, data) if self.encoder is not None and labels else None
        if few is not None:
            return scores.predict_few(self, few)
        dataset = self._dataset(data, require_label=False)
        if not labels:
            return retrieval.predict(self, dataset, batch_size)
        found = scores.predict(self, dataset, batch_size)
        if dataset is not data:
            dataset._warn_of_unknown()
        return found

    @property
    def prediction_names(self) -> list[str]:
        """Names of the columns of `predict`: a label's name; for classes ``NAME_CLASS``."""
        return self.model.all_labels.output_names

    recommend = retrieval.recommend
    item_vectors = retrieval.item_vectors
    query_vectors = retrieval.query_vectors

    _score = scores.score

    def _scored(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, np.ndarray]]:
        return self.parallel.scored(self, batches)

    def _vectors(self, function: str, batch: Batch | None = None) -> np.ndarray:
        return self.parallel.vectors(self, function, batch)

    def _dataset(
        self, data: Any, *, require_label: bool = True, read_weights: bool = False
    ) -> Dataset:
        if isinstance(data, Dataset):
            return data
        labels = bool(self.model.all_labels)
        return Dataset(
            data,
            self.encoder,
            require_label=require_label and labels,
            read_weights=read_weights,
            optional=() if require_label or labels else retrieval.wanted_column(self.model),
        )

    @whole
    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of all parameters and slots, by name.

        Each table has its own entry, ``embeddings.C1.weight``, even if it shares a storage; a slot
        is ``embeddings.C1.weight:sum``. A table trained in int8 is (V, D + 4) int8: each row holds
        D numbers, then a float32 scale. A table for prediction only is (V, D + 8) uint8: D bytes,
        then scale and offset.
        """
        with self.snapshot() as state:
            return {name: array.copy() for name, array in state.arrays.items()}

    @contextmanager
    def snapshot(self, *, missed: int = 0) -> Iterator[TrainingState]:
        """Yield the current state; threads that write weights wait until the block ends.

        In exact mode, rows that lag by more than `missed` steps are caught up first.
        """
        missed = min(missed, self.parallel.most_missed)
        with self._lock:
            yield TrainingState(self.params.views(self._count, missed=missed), self._counts())

    @together
    @synchronized
    def restore_(self, saved: Saved) -> None:
        """Fill all arrays and counts from an open checkpoint; after an error they are undefined.

        Raises
        ------
        CheckpointError
            If the checkpoint's arrays do not fit this model, are damaged or are not finite.
        """
        self._recount(saved.manifest)
        with self._writing() as target:
            fill_(target, self.parallel.opened(saved), self._updates)

    @property
    def table_bytes(self) -> int:
        """Size of all embedding tables in bytes, without slots."""
        return sum(self.params.table(name).weight_bytes for name in self.model.tables())

    @property
    def _count(self) -> runtime.NDArray | None:
        """The optimizer's own step count for a checkpoint, or None if it keeps no count."""
        return None

    @property
    def _updates(self) -> int | None:
        """Number of updates by the optimizer, if there is one."""
        return None

    def _writing(self) -> AbstractContextManager[dict[str, np.ndarray]]:
        return self.params.writing(self._count)

    def _counts(self) -> dict[str, Any]:
        """Return the counters that a step changes, as plain values."""
        return {"steps": self.steps, "epochs": self.epochs}

    def _recount(self, counts: Mapping[str, Any]) -> None:
        self.steps, self.epochs = int(counts["steps"]), int(counts["epochs"])

    def _weights(
        self, read: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, runtime.NDArray]:
        """Return the parameters used for scoring.

        Parameters
        ----------
        read : mapping of str to integer array, optional
            Storage -> the rows that will be read; only these are brought up to date. In a storage
            that is left out, all rows are.
        """
        return self.params.rows(read)
