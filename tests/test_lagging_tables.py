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
from sparsetrain import checkpoint
from sparsetrain.cli.report.facts import read_facts
from sparsetrain.parallel.group import Group
from sparsetrain.runtime import as_numpy
from sparsetrain.serving.delta import apply, write_delta
from tests import small_dlrm
from tests.models import test_named_features as named
from tests.parallel.threads import all_of, run_ranks
from tests.serving import logs
from tests.serving.conftest import exporting as exporting

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


def reported(trainer: Any, place: Path) -> dict[str, Any]:
    trainer.save(folder_of(trainer, place))
    facts = read_facts("run", folder_of(trainer, place), None, "latest", None)
    return {table.name: np.array([table.mean_norm, table.max_norm]) for table in facts.tables}


def saved_by_loop(trainer: Any, place: Path) -> dict[str, np.ndarray]:
    folder = folder_of(trainer, place)
    trainer.optimizer.save(folder, trainer.params, trainer.state)
    with checkpoint.opened(folder) as found:
        return {name: found.read(name) for name in found.kinds}


def other_tables(trainer: Any, _place: Path) -> dict[str, np.ndarray]:
    trainer.load_table("C1", np.zeros((small_dlrm.ROWS[0], 8), np.float32))
    return dict(trainer.state_dict())


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
    "load": lambda trainer, place: [
        trainer.save(folder_of(trainer, place)),
        st.load(folder_of(trainer, place), target="cpu").state_dict(),
    ][1],
    "a saved predictor": lambda trainer, place: [
        trainer.save(folder_of(trainer, place)),
        st.load_predictor(folder_of(trainer, place), target="cpu").predict(
            [small_dlrm.batch(16, 99)]
        ),
    ][1],
    "report": reported,
    "load_table": other_tables,
    "quantized": lambda trainer, _: trainer.quantized().state_dict(),
    "weights": lambda trainer, _: {n: as_numpy(w) for n, w in trainer._weights().items()},
    "an entry of params": lambda trainer, _: as_numpy(
        trainer.params[next(iter(trainer.model.tables()))]
    ),
    "a loop's save": saved_by_loop,
    "a loop's flush": lambda trainer, _: [
        trainer.optimizer.flush_(trainer.params, trainer.state),
        {name: as_numpy(weight) for name, weight in trainer.params.weights.items()},
    ][1],
    "views": lambda trainer, _: {n: v.copy() for n, v in trainer.params.views().items()},
    "all of params": lambda trainer, _: {n: as_numpy(w) for n, w in dict(trainer.params).items()},
    "a program of one's own": lambda trainer, _: as_numpy(
        trainer.program(trainer.params, trainer.model.inputs(small_dlrm.batch(16, 99)))[0]
    ),
    "first_nonfinite": lambda trainer, _: str(trainer.first_nonfinite(small_dlrm.batch(16, 99))),
}


# Public names of a trainer that are no reads, or are read beside the twin elsewhere.
ELSEWHERE = {
    **dict.fromkeys(("recommend", "item_vectors", "query_vectors"), "below, of retrieval"),
    **dict.fromkeys(("step", "fit", "profile"), "optim/test_exact.py: a step reads its rows"),
    "extended": "training/test_grow_tables.py, and parallel/test_growth.py",
    **dict.fromkeys(("load_state_dict", "restore_"), "write all rows"),
    "learn_": "of models whose tables no step changes",
    "program": "a program of one's own",
    **dict.fromkeys(
        ("prefetch", "compile", "prediction_names", "scaling", "seed", "table_bytes", "trains"),
        "read no rows",
    ),
}


def test_every_public_way_to_read_is_among_them():
    public = {name for name in dir(st.Trainer) if not name.startswith("_")}
    assert public == {name for name in {*READS, *ELSEWHERE} if name in public}


@pytest.mark.parametrize("way", READS)
def test_who_reads_finds_the_rows_of_the_dense_twin(tmp_path, way):
    exact, dense = lagging()
    assert_same(*(READS[way](trainer, tmp_path) for trainer in (exact, dense)))


def test_scoring_catches_up_the_rows_that_it_reads_and_no_others():
    exact, _ = lagging()
    exact.predict([small_dlrm.batch(1, 99)])
    assert any(lag(exact).values())
    exact.state_dict()
    assert not any(lag(exact).values())


def test_ranks_read_the_rows_of_the_dense_twin(tmp_path):
    def scores_and_rows(mode: str) -> Any:
        def work(comm: Any) -> Any:
            trainer = st.Trainer(
                small_dlrm.model(),
                st.optim.adam(0.05, mode=mode, update="sparse" if mode == "exact" else None),
                target="cpu",
                parallel=Group(comm, "row", 2),
            )
            for seed in range(STEPS):
                trainer.step(small_dlrm.batch(4, seed))
            assert mode == "dense" or any(lag(trainer).values())
            scores = trainer.predict([small_dlrm.batch(16, 99)])
            trainer.save(tmp_path / mode)
            return scores

        scores, _ = all_of(run_ranks(2, work))
        return {"scores": scores, **st.load_predictor(tmp_path / mode, target="cpu").state_dict()}

    assert_same(scores_and_rows("exact"), scores_and_rows("dense"))


@pytest.mark.parametrize("reads", ["recommend", "item_vectors", "query_vectors", "evaluate"])
def test_retrieval_reads_the_rows_of_the_dense_twin(reads):
    rows = named.frame()
    ways = {
        "recommend": lambda t: dict(enumerate(t.recommend(rows.head(20), 5))),
        "item_vectors": lambda t: t.item_vectors(),
        "query_vectors": lambda t: t.query_vectors(rows.head(20)),
        "evaluate": lambda t: t.evaluate(rows.head(20))["ndcg@10"],
    }

    def found(mode: str) -> Any:
        update = "sparse" if mode == "exact" else None
        optimizer = st.optim.adam(0.05, mode=mode, update=update, **DECAY)
        trainer = named.trainer_for(st.models.TwoTowers, rows, optimizer=optimizer)
        trainer.fit(rows.head(60), batch_size=10, progress=None)
        return ways[reads](trainer)

    assert_same(found("exact"), found("dense"))


def test_exports_and_deltas_have_the_rows_of_the_dense_twin(tmp_path, exporting):
    made, rows = logs.trained(logs.SCHEMA), logs.frame(logs.rows_of(80, 1), logs.SCHEMA)

    def files(mode: str) -> Any:
        update = "sparse" if mode == "exact" else None
        optimizer = st.optim.adam(0.05, mode=mode, update=update, **DECAY)
        trainer = st.Trainer(made.model, optimizer, encoder=made.encoder)
        trainer.fit(rows, batch_size=10, progress=None)
        older = exporting(trainer)
        trainer.fit(rows.slice(0, 10), batch_size=10, progress=None)
        assert mode == "dense" or any(lag(trainer).values())
        newer = exporting(trainer)
        write_delta(older, newer, tmp_path / f"{mode}-delta")
        apply(older, tmp_path / f"{mode}-delta", tmp_path / mode)
        return {
            f"{folder.name} {file.name}": np.fromfile(file, np.uint8)
            for folder in (older, tmp_path / mode)
            for file in sorted(folder.glob("*.bin"))
        }

    found, expected = (list(files(mode).values()) for mode in ("exact", "dense"))
    assert_same(dict(enumerate(found)), dict(enumerate(expected)))


@pytest.mark.peers
@pytest.mark.parametrize("way", ["parameters", "state_dict", "numpy"])
def test_layers_of_pytorch_have_the_rows_of_the_dense_twin(way):
    torch = pytest.importorskip("torch")
    ways = {
        "parameters": lambda layer: next(layer.parameters()).detach().tolist(),
        "state_dict": lambda layer: layer.state_dict()["weight"].tolist(),
        "numpy": lambda layer: np.from_dlpack(layer.weight.detach()).copy(),
    }

    def found(mode: str) -> Any:
        torch.manual_seed(0)
        layer = st.torch.RowSparseEmbedding(60, 8)
        rule = st.optim.adam(0.05, mode=mode, update="sparse" if mode == "exact" else None)
        optimizer = st.torch.RowSparseOptimizer(layer.parameters(), rule)
        for step in range(STEPS):
            optimizer.zero_grad()
            layer(torch.tensor([step, step + 1])).square().sum().backward()
            optimizer.step()
        return ways[way](layer)

    assert_same(found("exact"), found("dense"))


@pytest.mark.peers
def test_onnx_has_the_rows_of_the_dense_twin(tmp_path):
    onnx = pytest.importorskip("onnx")
    from sparsetrain.serving.onnx_model import export_onnx

    found = []
    for trainer in lagging():
        path = tmp_path / f"{trainer.optimizer.mode}.onnx"
        export_onnx(trainer, path)
        constants = onnx.load(str(path)).graph.initializer
        found.append({each.name: onnx.numpy_helper.to_array(each) for each in constants})
    assert_same(*found)


def assert_same(found: Any, expected: Any) -> None:
    """The same bits; of a mapping, in what both have."""
    if not isinstance(expected, dict):
        np.testing.assert_array_equal(found, expected)
        return
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
