# SPDX-License-Identifier: Apache-2.0
"""`TrainedModel`: a model with its parameters and slots: evaluation, prediction, saving, copies.

In exact mode, rows are caught up before they are scored or copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np

from sparsetrain import runtime
from sparsetrain.checkpoint import Saved
from sparsetrain.compiler.precision import LossScale, Precision, Scaling, scaling_for
from sparsetrain.data import Encoder
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import check_trainable, numpy_dtype
from sparsetrain.optim import Optimizer, averages
from sparsetrain.optim.exact.rows import check_saved, restored_
from sparsetrain.optim.state_dict import (
    COUNT,
    check_finite,
    check_kinds,
    load_arrays_,
    named_arrays,
    named_tables,
    writable_arrays,
)
from sparsetrain.system.locks import synchronized
from sparsetrain.training.predictor import Predictor, policy_of, table_dtype_of
from sparsetrain.training.quantized import QuantizedModel, quantize


class TrainedModel(Predictor):
    """What a `Trainer` trains; see there for the parameters."""

    def __init__(
        self,
        model: Any,
        optimizer: Optimizer,
        target: Any,
        seed: int,
        encoder: Encoder | None,
        initialize: bool,
        precision: Precision,
        loss_scale: LossScale | float | Literal["dynamic"] | None,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(
                "optimizer is a value such as sparsetrain.optim.adagrad(0.02), "
                f"not a {type(optimizer).__name__}"
            )
        check_trainable(table_dtype_of(model))
        scaling = scaling_for(loss_scale, policy_of(precision, target))
        super().__init__(model, target, encoder, precision, seed, initialize=initialize)
        self.optimizer, self.scaling = optimizer, scaling
        self._averages: tuple[int, dict[str, runtime.NDArray]] | None = None  # of a step
        tables = named_tables(model.tables())
        self.state = optimizer.init(
            self.params,
            tables,
            fill=initialize,
            seed=seed,
            scaled=scaling is not None,
            buffers=model.buffers(),
        )

    def _described(self) -> list[str]:
        return [self.optimizer.formula.name]

    @property
    def seed(self) -> int:
        """Decides initial weights, the order of the data and the rounding of half tables."""
        return self.state.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self.state.seed = seed

    @synchronized
    def quantized(self) -> QuantizedModel:
        """A model for prediction alone, whose tables are rows of int8: D + 8 bytes each.

        It predicts on the CPU, also where training was on CUDA; then in float32 if the CPU has no
        instructions for the precision of training.

        Raises
        ------
        ConfigError
            If the model's class takes no ``table_dtype``.
        NumericalError
            If a row of a table is not finite.
        """
        self._flush()
        return quantize(self)

    @synchronized
    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy arrays named as in `state_dict` into the parameters and slots.

        Raises
        ------
        CheckpointError
            If a name is missing or unknown, a shape or dtype differs, or rows of a table in exact
            mode are not all of one step; nothing is written then.
        """
        with self._writing() as target:
            load_arrays_(target, arrays, partial(check_saved, self.state))
        self._restored()

    @synchronized
    def table(self, name: str) -> np.ndarray:
        """A copy of an embedding table, (V, D) float32; `name` is that of one of its columns.

        Row by row it belongs to ``trainer.encoder.values(name)``.

        Raises
        ------
        ConfigError
            If there is no such table.
        """
        return self._arrays()[self._table_name(name)].astype(np.float32)

    @synchronized
    def load_table(self, name: str, rows: np.ndarray) -> None:
        """Write an embedding table, such as one that was trained elsewhere; its slots stay.

        A table that shall stay as it is has the group ``ParamGroup("embeddings.NAME.*", lr=0)``.

        Parameters
        ----------
        name : str
            That of a column; columns that share a table have one.
        rows : (V, D) floats
            Rounded to what the table is stored in.

        Raises
        ------
        ConfigError
            If there is no such table, the shape is another one, or a number is not finite.
        """
        full, rows = self._table_name(name), np.asarray(rows)
        self._flush()
        with self._writing() as target:
            table = target[full]
            if rows.shape != table.shape or rows.dtype.kind != "f" and rows.dtype != table.dtype:
                raise ConfigError(
                    f"load_table: {name} is {table.shape} floats, not {rows.shape} {rows.dtype}"
                )
            with np.errstate(over="ignore"):
                stored = rows.astype(np.float32).astype(table.dtype)
            if not np.isfinite(stored).all():
                raise ConfigError(
                    f"load_table: {name} has numbers that are not finite in {table.dtype}"
                )
            table[...] = stored

    def _table_names(self) -> list[str]:
        return [full for parts in named_tables(self.model.tables()).values() for full in parts]

    def _table_name(self, name: str) -> str:
        tables = self._table_names()
        full = self.model.table_of(name)
        if full not in tables:
            known = ", ".join(t.removeprefix("embeddings.").rpartition(".")[0] for t in tables)
            raise ConfigError(f"there is no table {name!r}; there are {known}")
        return full

    @synchronized
    def _read(self, checkpoint: Saved, names: Collection[str]) -> None:
        """Fill parameters and slots from an open checkpoint; undefined after an error.

        An optimizer that counts steps, such as one with a schedule, may take over from one that
        does not, and the reverse: the trainer's own counts say as much.
        """
        counted = None
        with self._writing() as target:
            if COUNT not in names:
                counted = target.pop(COUNT, None)
            elif COUNT not in target:
                names = {*names} - {COUNT}
            check_kinds(target, {name: checkpoint.kinds[name] for name in names})
            checkpoint.fill(target)
            check_finite(target)
            if counted is not None:
                counted[...] = self.steps - self.state.skipped
        self._restored(set(map(str, checkpoint.manifest["exact"])))

    def _arrays(self, *, current: bool = True) -> dict[str, np.ndarray]:
        if current:
            self._flush()
        return named_arrays(*self._named)

    def _scored_params(self) -> dict[str, runtime.NDArray]:
        """The averages, if the optimizer keeps them: made once for all batches of a validation."""
        if self.optimizer.average is None:
            return self.params
        if self._averages is None or self._averages[0] != self.state.step:
            self._averages = None  # before there are others
            self._averages = self.state.step, averages(self.params, self.state)
        return self._averages[1]

    def _writing(self) -> AbstractContextManager[dict[str, np.ndarray]]:
        self._averages = None
        return writable_arrays(*self._named)

    def _counts(self) -> dict[str, Any]:
        """What changes with steps beside the arrays, as plain values."""
        scale = None if self.scaling is None else self.scaling.to_dict()
        counts = {"steps": self.steps, "epochs": self.epochs, "skipped": self.state.skipped}
        return {**counts, "loss_scale": scale}

    @synchronized
    def _recount(self, counts: Mapping[str, Any]) -> None:
        """Go back to what `_counts` gave, once the arrays are those of that step."""
        self.steps, self.epochs = int(counts["steps"]), int(counts["epochs"])
        self.state.skipped = int(counts.get("skipped", 0))
        if self.scaling is not None and counts.get("loss_scale") is not None:
            self.scaling = Scaling.from_dict(counts["loss_scale"])
        self._restored()

    @property
    def _named(self) -> tuple[Any, Any, Any, runtime.NDArray | None]:
        count = self.state.count if self.optimizer.counts_steps else None
        return self.params, self.state, self.model.tables(), count

    @property
    def _bytes(self) -> int:
        """Bytes of all parameters and slots: what a checkpoint holds at least."""
        return sum(
            prod(map(int, tensor.shape)) * numpy_dtype(str(tensor.dtype)).itemsize
            for tensor in (*self.params.values(), *self.state.tensors())
        )

    def _flush(self) -> None:
        """Make every row current before it is read; only exact mode has something to do."""
        self.optimizer.flush_(self.params, self.state)

    def _restored(self, exact: Collection[str] | None = None) -> None:
        """Let the optimizer go on from arrays that were just loaded.

        `exact` names the tables that were in exact mode then, if others may have been.
        """
        if not self.optimizer.counts_steps:
            self.state.step = self.steps - self.state.skipped
        restored_(self.state, exact)
