# SPDX-License-Identifier: Apache-2.0
"""`TrainedModel`: a model with its parameters and slots, and all that is done with them but train.

Scores and copies are those of current rows: what exact mode owes a row is paid first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Literal

import numpy as np

from sparsetrain import runtime, scoring
from sparsetrain.build import Program
from sparsetrain.checkpoint import Saved
from sparsetrain.data import Batch, Dataset, Encoder
from sparsetrain.errors import ConfigError
from sparsetrain.formats import check_target
from sparsetrain.optim import Optimizer
from sparsetrain.precision import LossScale, Precision, policy_for, scaling_for
from sparsetrain.state import check_kinds, load_arrays_, named_arrays, named_tables, writable_arrays


class TrainedModel:
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
        self.model, self.optimizer, self.encoder = model, optimizer, encoder
        self.target, self.precision = target, precision
        self.steps = 0
        self._policy = policy_for(precision, target)
        check_target(model.config().get("table_dtype", "float32"), target.kind.name)
        self.scaling = scaling_for(loss_scale, self._policy)
        self.params = self._on_device(model.initialize(seed, fill=initialize))
        tables = named_tables(model.tables())
        scaled = self.scaling is not None
        self.state = optimizer.init(self.params, tables, fill=initialize, seed=seed, scaled=scaled)
        self._module = model.export()

    @property
    def seed(self) -> int:
        """Decides initial weights, the order of the data and the rounding of half tables."""
        return self.state.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self.state.seed = seed

    def _on_device(self, params: dict[str, runtime.NDArray]) -> dict[str, runtime.NDArray]:
        """Parameters where the target wants them; empties `params`, so that no two copies stay."""
        device = runtime.device_of(self.target)
        return {
            name: runtime.moved(params.pop(name), device, f"parameter {name!r}")
            for name in list(params)
        }

    @cached_property
    def _logits(self) -> Program:
        return Program(self._module, "logits", self.target, self._policy)

    def evaluate(self, data: Any, *, batch_size: int = 4096) -> dict[str, Any]:
        """Score labelled data.

        Returns
        -------
        dict
            ``auc`` and its error bound ``auc_bound``, ``logloss``, ``ne`` (normalised entropy),
            ``calibration``, ``rows``, and beside them ``constant_logloss`` and ``positive_rate``.
        """
        scores = self._evaluate(self._dataset(data), batch_size=batch_size)
        assert scores is not None
        return scores

    def _evaluate(
        self, dataset: Dataset, *, batch_size: int, stop: Callable[[], bool] | None = None
    ) -> dict[str, Any] | None:
        """As `scoring.scores`; every row is current then."""
        self._flush()
        return scoring.scores(self._score, dataset.batches(batch_size), stop)

    def predict(self, data: Any, *, batch_size: int = 4096) -> np.ndarray:
        """Click probabilities (rows,) float32, in the order of the rows; labels are not needed."""
        self._flush()
        dataset = self._dataset(data, require_label=False)
        return scoring.probabilities(self._score, dataset.batches(batch_size))

    def _score(self, batch: Batch) -> np.ndarray:
        inputs = self.model.inputs(batch)
        return runtime.as_numpy(self._logits(self.params, inputs))[:, 0]

    def _dataset(self, data: Any, require_label: bool = True) -> Dataset:
        if isinstance(data, Dataset):
            return data
        return Dataset(data, self.encoder, require_label=require_label)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and slots, by name.

        Tables appear one by one, ``embeddings.C1.weight``, however they are stored; a slot as
        ``embeddings.C1.weight:sum``.
        """
        return {name: array.copy() for name, array in self._arrays().items()}

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy arrays named as in `state_dict` into the parameters and slots.

        Raises
        ------
        CheckpointError
            If a name is missing or unknown, or a shape or dtype differs; nothing is written then.
        """
        with self._writing() as target:
            load_arrays_(target, arrays)
        self._restored()

    def _read(self, checkpoint: Saved, names: Collection[str]) -> None:
        """Fill parameters and slots from an open checkpoint; undefined after an error."""
        with self._writing() as target:
            check_kinds(target, {name: checkpoint.kinds[name] for name in names})
            checkpoint.fill(target)
        self._restored()

    def _arrays(self, *, current: bool = True) -> dict[str, np.ndarray]:
        if current:
            self._flush()
        return named_arrays(*self._named)

    def _writing(self) -> AbstractContextManager[dict[str, np.ndarray]]:
        return writable_arrays(*self._named)

    @property
    def _named(self) -> tuple[Any, Any, Any, runtime.NDArray | None]:
        count = self.state.count if self.optimizer.counts_steps else None
        return self.params, self.state, self.model.tables(), count

    def _flush(self) -> None:
        """Make every row current before it is read; only exact mode has something to do."""
        self.optimizer.flush_(self.params, self.state)

    def _restored(self) -> None:
        """Let the optimizer go on from arrays that were just loaded."""
        if not self.optimizer.counts_steps:
            self.state.step = self.steps - self.state.skipped
        self.optimizer.restored_(self.state)
