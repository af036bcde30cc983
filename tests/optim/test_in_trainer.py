# SPDX-License-Identifier: Apache-2.0
"""Modes, accumulation and options through `Trainer`: a DLRM, its evaluation and its checkpoints."""

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.backends.cpu import Cpu
from sparsetrain.errors import CheckpointError
from tests import small_dlrm
from tests.helpers import slow_except
from tests.small_dlrm import assert_same_state


def adamw(**options) -> st.optim.Optimizer:
    return st.optim.adamw(0.01 * st.optim.warmup(5) * st.optim.cosine(40), **options)


def steps(trainer, first: int, last: int, kind: str = "single"):
    for number in range(first, last):
        trainer.step(small_dlrm.batch(16, number, kind))
    return trainer


def weights(trainer) -> dict[str, np.ndarray]:
    return {n: a for n, a in trainer.state_dict().items() if not n.endswith(":last")}


@pytest.mark.parametrize("kind", ["single", pytest.param("mean", marks=pytest.mark.slow)])
def test_exact_training_equals_dense_training_and_evaluating_changes_nothing(kind):
    exact = steps(small_dlrm.trainer(kind, adamw(mode="exact")), 0, 10, kind)
    dense = steps(small_dlrm.trainer(kind, adamw(mode="dense")), 0, 10, kind)
    probe = small_dlrm.batch(64, 99, kind)
    assert exact.evaluate(probe) == dense.evaluate(probe)
    np.testing.assert_array_equal(exact.predict(probe), dense.predict(probe))
    assert_same_state(weights(steps(exact, 10, 20, kind)), weights(steps(dense, 10, 20, kind)))


@pytest.mark.parametrize(
    "options", [{}, {"mode": "exact"}, {"mode": "exact", "max_replayed_steps": 3}]
)
def test_a_run_in_any_mode_goes_on_from_a_checkpoint_as_if_never_saved(tmp_path, options):
    whole = steps(small_dlrm.trainer(optimizer=adamw(**options)), 0, 10)
    whole.save(tmp_path / "run")
    loaded = small_dlrm.share_programs(st.load(tmp_path / "run"))
    assert loaded.optimizer == whole.optimizer
    assert_same_state(steps(loaded, 10, 20).state_dict(), steps(whole, 10, 20).state_dict())


@pytest.mark.parametrize(("before", "after"), [(0, 200), (200, 0), (200, 200)])
def test_a_checkpoint_goes_on_where_other_tables_are_small(tmp_path, monkeypatch, before, after):
    monkeypatch.setattr(Cpu, "most_weights_dense", before)
    dense = steps(small_dlrm.trainer(optimizer=adamw(mode="dense")), 0, 20)
    steps(small_dlrm.trainer(optimizer=adamw(mode="exact")), 0, 10).save(tmp_path / "run")
    monkeypatch.setattr(Cpu, "most_weights_dense", after)
    loaded = small_dlrm.share_programs(st.load(tmp_path / "run"))
    assert_same_state(weights(steps(loaded, 10, 20)), weights(dense))


def test_a_state_dict_brings_back_the_step_of_adam():
    trainer = steps(small_dlrm.trainer(optimizer=adamw()), 0, 5)
    kept = trainer.state_dict()
    assert kept["optimizer:step"].tolist() == [5]
    after = steps(trainer, 5, 8).state_dict()
    trainer.load_state_dict(kept)
    assert_same_state(steps(trainer, 5, 8).state_dict(), after)


def test_rows_of_different_steps_are_refused_before_anything_is_written():
    trainer = steps(small_dlrm.trainer(optimizer=adamw(mode="exact")), 0, 5)
    damaged = trainer.state_dict()
    steps(trainer, 5, 8)
    kept = trainer.state_dict()
    damaged["embeddings.C2.weight:last"][1] = 3
    with pytest.raises(CheckpointError, match="rows of '.*' are saved at different steps"):
        trainer.load_state_dict(damaged)
    assert_same_state(trainer.state_dict(), kept)


@pytest.mark.parametrize(("now", "then"), [("exact", "dense"), ("dense", "exact")])
def test_a_state_of_another_mode_is_refused_with_the_way_out(now, then):
    trainer, other = (small_dlrm.trainer(optimizer=adamw(mode=mode)) for mode in (now, then))
    modes = ("'exact'", "another") if now == "exact" else ("another", "'exact'")
    said = (
        f"has mode {modes[0]} and the saved one had {modes[1]}: load it with the mode that it was"
    )
    with pytest.raises(CheckpointError, match=said):
        trainer.load_state_dict(other.state_dict())


@pytest.mark.parametrize("kind", slow_except(["single"], ["single", "weighted"]))
def test_a_batch_in_parts_is_the_step_of_the_whole_batch(kind):
    whole = small_dlrm.trainer(kind, st.optim.sgd(0.1))
    parts = small_dlrm.trainer(kind, st.optim.sgd(0.1))
    parts.accumulate = 5
    batch = small_dlrm.batch(33, kind=kind)
    losses = [float(trainer.step(batch)) for trainer in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for name, array in whole.state_dict().items():
        np.testing.assert_allclose(parts.state_dict()[name], array, atol=1e-6)


def test_a_run_goes_on_after_a_skipped_step():
    plain = small_dlrm.batch(64)
    huge = st.data.Batch(np.sign(plain.dense) * np.float32(3e38), plain.ids, plain.labels)
    trainer = small_dlrm.trainer(optimizer=st.optim.adam(0.01, on_nonfinite="skip", mode="exact"))
    history = trainer.fit([plain, huge, plain], progress=None)
    assert np.isfinite(history["loss"]) and (trainer.steps, trainer.state.step) == (3, 2)
    assert trainer.evaluate(plain)["auc"] > 0


def test_each_table_says_which_path_its_updates_take():
    groups = [
        st.optim.ParamGroup("embeddings.C2.weight", mode="dense"),
        st.optim.ParamGroup("embeddings.C3.weight", mode="exact", max_replayed_steps=9),
    ]
    trainer = small_dlrm.trainer(optimizer=st.optim.adam(0.1, groups=groups))
    third, second, first = trainer.optimizer.describe(trainer.state)
    assert (
        first == "embeddings.C1.weight: touched rows, lazy: the slots of other rows do not change"
    )
    assert second == "embeddings.C2.weight: dense: every row in every step, as requested"
    assert third.startswith("embeddings.C3.weight: touched rows, exact: ") and "9 steps" in third
    assert trainer.optimizer.summarize(trainer.state) == (
        "touched rows, exact: others are caught up before they are read, at most 9 steps a row "
        "(1 table); dense: every row in every step, as requested (1 table); touched rows, lazy: "
        "the slots of other rows do not change (1 table)"
    )
    steps(trainer, 0, 3)
