# SPDX-License-Identifier: Apache-2.0
"""Rows that lag in exact mode are current for whoever reads them: every public way, beside a twin.

The twin is trained by the dense optimizer, whose rows never lag.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.runtime import as_numpy
from tests import small_dlrm
from tests.models import test_named_features as named

STEPS = 6
DECAY = {"weight_decay": 0.01}


def dlrm(mode: str) -> Any:
    update = "sparse" if mode == "exact" else None
    optimizer = st.optim.adam(0.05, mode=mode, update=update, **DECAY)
    return small_dlrm.trainer(optimizer=optimizer)


def lagging(make: Callable[[str], Any] = dlrm) -> tuple[Any, Any]:
    """A trainer with rows that lag, and its twin."""
    exact, dense = make("exact"), make("dense")
    for trainer in (exact, dense):
        for seed in range(STEPS):
            trainer.step(small_dlrm.batch(4, seed))
    assert any(lag(exact).values())
    return exact, dense


def lag(trainer: Any) -> dict[str, bool]:
    """Whether a row of each table lags, looking at memory alone."""
    return {
        table.name: any(h.now > h.base for h in table.histories.values())
        for table in trainer.params.lagging
    }


def folder_of(trainer: Any, place: Path) -> Path:
    place.mkdir(exist_ok=True)
    return place / trainer.optimizer.mode


def saved(trainer: Any, place: Path) -> dict[str, np.ndarray]:
    trainer.save(folder_of(trainer, place))
    return st.load_predictor(folder_of(trainer, place), target="cpu").state_dict()


def exported(trainer: Any, place: Path) -> dict[str, np.ndarray]:
    folder = folder_of(trainer, place)
    st.serving.export(trainer, folder)
    return {file.name: np.fromfile(file, np.uint8) for file in sorted(folder.glob("*.bin"))}


def best_of(trainer: Any, _place: Path) -> dict[str, np.ndarray]:
    with trainer.snapshot() as state:
        return {name: array.copy() for name, array in state.arrays.items()}


READS: dict[str, Callable[[Any, Path], Any]] = {
    "predict": lambda trainer, _: trainer.predict([small_dlrm.batch(16, 99)]),
    "evaluate": lambda trainer, _: trainer.evaluate([small_dlrm.batch(16, 99)])["logloss"],
    "state_dict": lambda trainer, _: trainer.state_dict(),
    "table": lambda trainer, _: trainer.table("C1"),
    "snapshot": best_of,
    "save": saved,
    "quantized": lambda trainer, _: trainer.quantized().state_dict(),
    "weights": lambda trainer, _: {n: as_numpy(w) for n, w in trainer.weights().items()},
    "an entry of params": lambda trainer, _: as_numpy(trainer.params["embeddings.8.weight"]),
    "all of params": lambda trainer, _: {n: as_numpy(w) for n, w in dict(trainer.params).items()},
    "a program of one's own": lambda trainer, _: as_numpy(
        trainer.program(trainer.params, trainer.model.inputs(small_dlrm.batch(16, 99)))[0]
    ),
    "first_nonfinite": lambda trainer, _: str(trainer.first_nonfinite(small_dlrm.batch(16, 99))),
}


@pytest.mark.parametrize("way", READS)
def test_who_reads_finds_the_rows_of_the_dense_twin(tmp_path, way):
    exact, dense = lagging()
    assert_same(*(READS[way](trainer, tmp_path) for trainer in (exact, dense)))


def assert_same(found: Any, expected: Any) -> None:
    """The same bits; of a mapping, in what both have."""
    if not isinstance(expected, dict):
        np.testing.assert_array_equal(found, expected)
        return
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
