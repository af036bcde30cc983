# SPDX-License-Identifier: Apache-2.0
"""`Predictor`: a model with its parameters, for scores and probabilities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.backend import backend_of
from sparsetrain.checkpoint import Saved
from sparsetrain.compiler.precision.arithmetic import Arithmetic
from sparsetrain.compiler.program import Program
from sparsetrain.data import Batch, Dataset, Encoder
from sparsetrain.data.encode.few_rows import encode_few
from sparsetrain.errors import ConfigError, DataError, NumericalError
from sparsetrain.kernels.table_formats import check_target
from sparsetrain.labels import LabelMetrics
from sparsetrain.models.functions import METHODS
from sparsetrain.models.model_checks import (
    check_group_feature,
    check_labels_of,
    export_checked,
    initialize_checked,
    require_loadable,
    table_dtype_of,
)
from sparsetrain.runtime.targets import device_of
from sparsetrain.runtime.tensors import to_device
from sparsetrain.system.argument_checks import require_type
from sparsetrain.system.html import describe
from sparsetrain.system.locks import new_lock, synchronized
from sparsetrain.tables.collection import Tables
from sparsetrain.tables.state_dict import (
    ENCODER,
    check_finite,
    check_kinds,
    describe_nonfinite,
    named_tables,
    require_own_names,
)
from sparsetrain.tables.table import Table
from sparsetrain.training import retrieval


class TrainingState(NamedTuple):
    """Parameters and slots by name, as views, and the counts of steps, as plain values."""

    arrays: dict[str, np.ndarray]
    counts: dict[str, Any]


def fill_(target: dict[str, np.ndarray], saved: Saved, names: Collection[str]) -> None:
    """Fill arrays from those of a checkpoint that are named; writes `target`."""
    check_kinds(target, {name: saved.kinds[name] for name in names})
    saved.fill(target)
    check_finite(target)


class Predictor:
    """What can be asked about rows; see `Trainer` for the parameters.

    Threads that ask one of them wait for each other while kernels run; batches are read and
    checked by all at once.
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
    ) -> None:
        require_type("encoder", encoder, Encoder, "an Encoder, such as Encoder.fit(train)")
        self.model, self.encoder, self.target = model, encoder, target
        self.backend = backend_of(target)
        self.precision, self.arithmetic = arithmetic.name, arithmetic
        self.steps = self.epochs = 0
        self._lock = new_lock()  # of the thread that reads or writes weights
        check_target(table_dtype_of(model), target)
        require_loadable(model)
        if encoder is not None:
            model.bind(encoder)
        check_labels_of(model, encoder)
        self._module = export_checked(model)
        self._programs: dict[str, Program] = {}
        params = self._initial(seed, initialize)
        require_own_names(type(model).__name__, params, model.tables())
        self.params = self._held(self._on_device(params))

    def __repr__(self) -> str:
        what = ", ".join([type(self.model).__name__, *self._described()])
        return f"<{type(self).__name__}: {what}, {self.steps} steps, on {self.target.kind.name}>"

    def _repr_html_(self) -> str:
        parts = [own for tables in self._tables().values() for own in tables.values()]
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
            f"a {type(self).__name__} is not pickled or copied: save it in a folder and load that, "
            "or take its state_dict()"
        )

    def _tables(self) -> Mapping[str, Mapping[str, slice]]:
        """Rows of each table in the parameters that hold tables."""
        tables: Mapping[str, Mapping[str, slice]] = self.model.tables()
        return tables

    def _initial(self, seed: int, fill: bool) -> dict[str, runtime.NDArray]:
        """Fresh parameters."""
        return initialize_checked(self.model, seed, fill)

    def _described(self) -> list[str]:
        """What `repr` says besides the model's kind."""
        return []

    def _on_device(self, params: dict[str, runtime.NDArray]) -> dict[str, runtime.NDArray]:
        """Parameters where the target wants them; empties `params`, so that no two copies stay."""
        device = device_of(self.target)
        return {
            name: to_device(params.pop(name), device, f"parameter {name!r}")
            for name in list(params)
        }

    def _held(self, weights: dict[str, runtime.NDArray]) -> Tables:
        """The tables of these weights."""
        parts = named_tables(self._tables())
        return Tables({name: Table(name, w, parts=parts.get(name)) for name, w in weights.items()})

    @cached_property
    def _logits(self) -> Program:
        return self._program("logits")

    def _program(self, function: str) -> Program:
        """A function of the model, compiled when it is first called."""
        if function not in self.model.functions:
            raise ConfigError(
                f"{type(self.model).__name__} has no {METHODS[function]}: there is nothing to score"
            )
        if function not in self._programs:
            self._programs[function] = Program(self._module, function, self.target, self.arithmetic)
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
    ) -> dict[str, Any]:
        """Score labelled data, or for a model of queries and items rank the wanted ones.

        Parameters
        ----------
        data : anything that `fit` takes
        batch_size : int
            Of a ranking it follows from the number of items.
        group_by : str, optional
            A feature with one id in each row, such as the user. Rows of one id are a group, and of
            each binary label there are the scores of `GroupedAUC` as well. Values that the encoder
            gives one row, such as rare ones, are one group.
        k : int or sequence of int
            Of ranking metrics: lengths of the list that is looked at.
        negatives : int or ndarray (rows, n) of integers, optional
            Rank the wanted item of a row among so many others that are drawn from those it has not
            seen, the same in every call, or among those with the given ids; by default among all
            that it has not seen.
        negative_weights : ndarray (V,), optional
            Chances of the items to be drawn, such as their counts; by default all are alike.

        Returns
        -------
        dict
            Of one binary label ``auc`` and its error bound ``auc_bound``, ``logloss``, ``ne``
            (normalised entropy), ``calibration``, ``accuracy``, ``rows``, and beside them
            ``constant_logloss`` and ``positive_rate``; of another kind those of its metrics, such
            as `RegressionMetrics`; of several ``NAME.auc`` and so on, with their ``loss`` and
            ``rows``; without labels those of `RankingMetrics`, such as ``ndcg@10``. A wanted value
            that was rare or never seen when the encoder was fitted counts as an item that no list
            has; a null is not wanted.

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
            raise ConfigError("evaluate: k and negatives are for models that rank items")
        dataset = self._dataset(data)
        scores = self._evaluate(
            dataset,
            batch_size=batch_size,
            group_by=group_by,
            k=k,
            negatives=negatives,
            negative_weights=negative_weights,
        )
        assert scores is not None
        if dataset is not data:  # else its owner may look at all of what was read
            dataset._warn_of_unknown()
        return scores

    def _evaluate(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        group_by: str | None = None,
        stop: Callable[[], bool] | None = None,
        **ranking: Any,
    ) -> dict[str, Any] | None:
        """The scores, or None if `stop`, asked between two batches, ended it."""
        if not self.model.all_labels:
            return retrieval.evaluate(self, dataset, **ranking, stop=stop)
        model = self.model
        metrics = LabelMetrics(model.all_labels, group_by is not None, model.label_weights)
        scored = self._scored(map(self._labelled, dataset.batches(batch_size)))
        for number, (batch, scores) in enumerate(scored):
            if number and stop is not None and stop():
                return None
            assert batch.labels is not None
            groups = None if group_by is None else model.read(group_by, batch)
            metrics.update(scores, batch.labels, groups)
        return metrics.result()

    def _labelled(self, batch: Batch) -> Batch:
        if batch.labels is None:
            raise DataError("data to evaluate on needs labels")
        self.model.all_labels.check(batch.labels)
        return batch

    def _scored(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, np.ndarray]]:
        """Yield each batch with its scores."""
        for batch in batches:
            yield batch, self._score(batch)

    def predict(self, data: Any, *, batch_size: int = 4096) -> np.ndarray:
        """Predictions (rows,) float32, in the order of the rows; labels are not needed.

        Probabilities of a binary label, values of a real one, means of counts; (rows, C)
        probabilities of C classes, (rows, Q) quantiles; of several labels all these side by side.
        Without labels the score of the wanted item of each row.

        Raises
        ------
        NumericalError
            If a score is NaN or infinite.
        """
        labels = self.model.all_labels
        few = encode_few(self.encoder, data) if self.encoder is not None and labels else None
        if few is not None:
            ((_, scores),) = self._scored([few])
            return labels.predictions(scores)
        dataset = self._dataset(data, require_label=False)
        if not labels:
            return retrieval.scores_of_targets(self, dataset, batch_size)
        # Batch by batch, since float64 of all rows would be much memory.
        scored = self._scored(dataset.batches(batch_size))
        found = [labels.predictions(scores) for _, scores in scored]
        if dataset is not data:
            dataset._warn_of_unknown()
        none = labels.predictions(np.empty((0, self.model.num_logits), np.float32))
        return np.concatenate([*found, none])

    @property
    def prediction_names(self) -> list[str]:
        """Names of the columns of `predict`: those of labels; of classes ``NAME_CLASS``."""
        return self.model.all_labels.output_names

    def recommend(
        self, data: Any, k: int = 10, *, include_seen: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k best items of each row: their ids and scores, (rows, k) each, best first.

        Parameters
        ----------
        data : anything that `fit` takes
        k : int
        include_seen : bool
            Whether items that the model's `seen` feature lists may be among them.

        Returns
        -------
        tuple of (rows, k) int64 and (rows, k) float32
            ``encoder.values(column)[id]`` is the value of an id. Where a row has fewer than k items
            left, the others' ids are -1 and their scores -inf.

        Raises
        ------
        ConfigError
            If the model has no queries and items, or fewer than k items.
        """
        dataset = self._dataset(data, require_label=False)
        return retrieval.recommend(self, dataset, k, include_seen)

    def item_vectors(self) -> np.ndarray:
        """(V, D) float32 vectors of all items, for an index of one's own."""
        return retrieval.item_vectors(self)

    def query_vectors(self, data: Any, *, batch_size: int = 4096) -> np.ndarray:
        """(rows, D) float32 vectors, whose products with those of items are scores."""
        dataset = self._dataset(data, require_label=False)
        return retrieval.query_vectors(self, dataset, batch_size)

    def _score(self, batch: Batch) -> np.ndarray:
        """Logits of each row and label, (B, T) float32."""
        inputs = self.model.inputs(batch)
        with self._lock:
            weights = self._weights(self.model.rows_read(inputs))
            logits = runtime.as_numpy(self._logits(weights, inputs))
        return self._finite(logits)

    def _finite(self, logits: np.ndarray) -> np.ndarray:
        """The scores; else an error that names a parameter that is not finite, if there is one."""
        finite = np.isfinite(logits)
        if not finite.all():
            found = describe_nonfinite(self.params.views(current=False))
            raise NumericalError(
                f"the score of a row is {logits[~finite][0]}: "
                f"{found or 'its inputs or weights are too large'}"
            )
        return logits

    def _dataset(
        self, data: Any, *, require_label: bool = True, read_weights: bool = False
    ) -> Dataset:
        if isinstance(data, Dataset):
            return data
        require_label = require_label and bool(self.model.all_labels)
        return Dataset(data, self.encoder, require_label=require_label, read_weights=read_weights)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and slots, by name.

        Tables appear one by one, ``embeddings.C1.weight``, however they are stored; a slot as
        ``embeddings.C1.weight:sum``. A table in int8 is (V, D + 8) uint8: of each row the bytes,
        then scale and offset in float32.
        """
        with self.snapshot() as state:
            return {name: array.copy() for name, array in state.arrays.items()}

    @contextmanager
    def snapshot(self, *, current: bool = True) -> Iterator[TrainingState]:
        """The state as it is while the block runs: no other thread writes weights meanwhile.

        Parameters
        ----------
        current : bool
            Whether rows that exact mode left behind are caught up first.
        """
        with self._lock:
            yield TrainingState(self.params.views(self._count, current=current), self._counts())

    @synchronized
    def restore_(self, saved: Saved) -> None:
        """Fill all arrays from an open checkpoint, and take its counts; undefined after an error.

        Raises
        ------
        CheckpointError
            If its arrays are not those of this model, are damaged or not finite.
        """
        self._recount(saved.manifest)
        with self._writing() as target:
            self._fill_(target, saved, {n for n in saved.kinds if not n.startswith(ENCODER)})

    def _fill_(self, target: dict[str, np.ndarray], saved: Saved, names: Collection[str]) -> None:
        """Slots of an optimizer are left where they are."""
        fill_(target, saved, {name for name in names if name in target or ":" not in name})

    @property
    def table_bytes(self) -> int:
        """Bytes of all embedding tables, without slots."""
        return sum(runtime.as_numpy(self.params.weights[n]).nbytes for n in self.model.tables())

    @property
    def _count(self) -> runtime.NDArray | None:
        """Steps taken, if a checkpoint needs the optimizer's own count of them."""
        return None

    def _writing(self) -> AbstractContextManager[dict[str, np.ndarray]]:
        return self.params.writing(self._count)

    def _counts(self) -> dict[str, Any]:
        """What changes with steps beside the arrays, as plain values."""
        return {"steps": self.steps, "epochs": self.epochs}

    def _recount(self, counts: Mapping[str, Any]) -> None:
        self.steps, self.epochs = int(counts["steps"]), int(counts["epochs"])

    def _weights(
        self, read: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, runtime.NDArray]:
        """The parameters by which it scores.

        Parameters
        ----------
        read : mapping of str to integer array, optional
            Storage -> the rows that will be read, which are current then; of others all are.
        """
        return self.params.rows(read)
