# SPDX-License-Identifier: Apache-2.0
"""A trainer that was saved and loaded is the trainer; what is not a saved trainer is refused."""

import copy

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain import checkpoint, errors
from sparsetrain.errors import CheckpointError, ConfigError
from tests import small_dlrm
from tests.helpers import read_checkpoint
from tests.small_dlrm import assert_same_state

OPTIMIZERS = {
    "sgd": st.optim.sgd(0.1),
    "adagrad": st.optim.adagrad(0.1, eps=1e-6, initial=0.1),
    "rowwise_adagrad": st.optim.rowwise_adagrad(0.1),
}


def loaded(folder, kind="single", **options) -> st.Trainer:
    return small_dlrm.share_programs(st.load(folder, **options), kind)


@pytest.fixture
def folder(tmp_path):
    """A saved trainer with an encoder, after one epoch."""
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder(), seed=3)
    trainer.fit(small_dlrm.raw_rows(100), progress=None)
    trainer.save(tmp_path / "run", extra={"note": "mine"})
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("single", name) for name in OPTIMIZERS), ("weighted", "adagrad"), ("bfloat16", "adagrad")],
)
def test_it_predicts_and_trains_on_as_if_never_saved(tmp_path, kind, name):
    first = small_dlrm.trainer(kind, OPTIMIZERS[name], seed=3)
    first.step(small_dlrm.batch(37, kind=kind))
    first.save(tmp_path / "run")
    second = loaded(tmp_path / "run", kind)
    batch = small_dlrm.batch(64, seed=1, kind=kind)
    np.testing.assert_array_equal(second.predict(batch), first.predict(batch))
    for trainer in (first, second):
        trainer.step(batch)
    assert_same_state(second.state_dict(), first.state_dict())
    assert (second.steps, second.seed) == (2, 3)
    assert second.model.config() == first.model.config()
    assert second.optimizer.hyper == first.optimizer.hyper


def test_a_rule_of_the_users_own_does_not_come_back_as_ours_of_that_name(tmp_path):
    ours = st.optim.sgd(0.1)
    own = st.optim.Optimizer(ours.formula._replace(step=lambda w, g, s, h: (w + g, s)), ours.hyper)
    first = small_dlrm.trainer(optimizer=own)
    first.save(tmp_path / "run")
    with pytest.raises(
        CheckpointError, match=r"custom formula named 'sgd': pass load\(..., optimizer"
    ):
        st.load(tmp_path / "run")
    assert st.load(tmp_path / "run", optimizer=own).optimizer is own


def test_the_next_epoch_reads_the_data_in_the_order_it_would_have(folder):
    first = small_dlrm.trainer(encoder=small_dlrm.encoder(), seed=3)
    first.fit(small_dlrm.raw_rows(100), epochs=2, progress=None)
    second = loaded(folder)
    second.fit(small_dlrm.raw_rows(100), progress=None)
    assert first.epochs == second.epochs == 2
    assert_same_state(second.state_dict(), first.state_dict())


def test_raw_rows_are_scored_with_the_encoder_that_was_saved(folder):
    first = small_dlrm.trainer(encoder=small_dlrm.encoder(), seed=3)
    first.fit(small_dlrm.raw_rows(100), progress=None)
    rows = small_dlrm.raw_rows(40, seed=9)
    np.testing.assert_array_equal(loaded(folder).predict(rows), first.predict(rows))


def test_a_loaded_trainer_does_not_need_its_folder_and_can_replace_it(folder):
    trainer = loaded(folder)
    trainer.fit(small_dlrm.raw_rows(100), progress=None)
    trainer.save(folder)
    again = loaded(folder)
    assert_same_state(again.state_dict(), trainer.state_dict())
    assert (again.steps, again.epochs) == (2, 2)


def test_numbers_of_numpy_are_saved_as_numbers(tmp_path):
    model = st.models.DLRM(
        np.array(small_dlrm.ROWS), np.int64(8), (16,), np.array([16]), num_dense=13
    )
    trainer = st.Trainer(model, st.optim.sgd(np.float64(0.1)), seed=np.int64(4))
    trainer.save(tmp_path / "run")
    again = st.load(tmp_path / "run")
    assert_same_state(again.state_dict(), trainer.state_dict())
    assert (again.seed, again.optimizer.hyper) == (4, {"lr": 0.1})


def test_the_callers_own_values_are_kept_beside_it(folder):
    _, manifest = read_checkpoint(folder)
    assert manifest["extra"] == {"note": "mine"}


def test_values_that_cannot_be_kept_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(CheckpointError, match="extra"):
        small_dlrm.trainer().save(tmp_path / "run", extra={"array": np.ones(3)})
    assert not (tmp_path / "run").exists()


def test_another_optimizer_of_the_same_slots_can_take_over(folder):
    trainer = st.load(folder, optimizer=st.optim.adagrad(0.001))
    assert trainer.optimizer.hyper["lr"] == 0.001


def test_an_optimizer_with_other_slots_cannot_take_over(folder):
    with pytest.raises(CheckpointError, match="'bottom.layers.0.bias:sum' is unknown"):
        st.load(folder, optimizer=st.optim.sgd(0.1))


def test_an_unknown_target_is_the_callers_mistake_not_the_folders(folder):
    with pytest.raises(ConfigError, match="target 'vulkan' is not supported"):
        st.load(folder, target="vulkan")


# --- What is refused ----------------------------------------------------------------------------


def _without(*keys):
    def change(arrays, manifest):
        *path, last = keys
        for key in path:
            manifest = manifest[key]
        del manifest[last]

    return change


def _with(value, *keys):
    def change(arrays, manifest):
        *path, last = keys
        for key in path:
            manifest = manifest[key]
        manifest[last] = value

    return change


def _array(name, make):
    def change(arrays, manifest):
        arrays[name] = make(arrays[name])

    return change


TABLE = "embeddings.C1.weight"
CHANGES = {
    "another kind": (_with("a cake", "kind"), "holds 'a cake', not a saved trainer"),
    "no kind": (_without("kind"), "holds None, not a saved trainer"),
    "no model": (_without("model"), "lacks a valid value: 'model'"),
    "a model of another kind": (
        _with("os.system", "model", "kind"),
        "model 'os.system' is unknown",
    ),
    "a model without rows": (_without("model", "config", "rows"), "rows"),
    "a model with an unknown setting": (_with(1, "model", "config", "depth"), "depth"),
    "a model that is text": (_with("dlrm", "model"), "lacks a valid value"),
    "text for a number": (_with(["many"], "model", "config", "rows"), "many"),
    "no rows": (_with([0, 20, 7], "model", "config", "rows"), "must be 1 or more"),
    "other rows": (
        _with([50, 21, 7], "model", "config", "rows"),
        r"'embeddings.C2.weight' is \(20, 8\) float32, the model's is \(21, 8\) float32",
    ),
    "more rows than fit any memory": (
        _with([50, 20, 10**12], "model", "config", "rows"),
        r"'embeddings.C3.weight' is \(7, 8\) float32, the model's is \(1000000000000, 8\) float32",
    ),
    "a table that is not finite": (
        _array(TABLE, lambda array: np.full_like(array, np.nan)),
        "parameter 'embeddings.C1.weight' holds numbers that are not finite: take another",
    ),
    "a slot that is not finite": (
        _array(f"{TABLE}:sum", lambda array: np.full_like(array, np.inf)),
        "slot 'embeddings.C1.weight:sum' holds numbers that are not finite: take another",
    ),
    "tables of another dtype": (
        _with("bfloat16", "model", "config", "table_dtype"),
        r"'embeddings.C1.weight' is \(50, 8\) float32, the model's is \(50, 8\) bfloat16",
    ),
    "tables of an unknown dtype": (
        _with("int4", "model", "config", "table_dtype"),
        "table_dtype is one of .*, not 'int4'",
    ),
    "other tables": (
        _with(["C1", "C2", "D"], "model", "config", "names"),
        "'embeddings.D.weight' is missing",
    ),
    "an unknown optimizer": (_with("magic", "optimizer", "name"), "trained with 'magic'"),
    "an optimizer without a rate": (_without("optimizer", "hyper", "lr"), "lr"),
    "a rate that is text": (_with("fast", "optimizer", "hyper", "lr"), "lr must be"),
    "a negative seed": (_with(-1, "seed"), "seed"),
    "a seed that is text": (_with("x", "seed"), "x"),
    "no steps": (_without("steps"), "lacks a valid value: 'steps'"),
    "an encoder of something else": (_with({"format": "x"}, "encoder"), "encoder"),
    "an encoder that is text": (_with("x", "encoder"), "encoder"),
    "an array of another shape": (
        _array(TABLE, lambda a: a[1:]),
        r"'embeddings.C1.weight' is \(49, 8\) float32",
    ),
    "an array of another type": (
        _array(TABLE, lambda a: a.astype(np.float64)),
        "is .* float64, the model's is .* float32",
    ),
    "an array of an encoder that is of another type": (
        _array("encoder/text_ids", lambda a: a.astype(np.float32)),
        "'text_ids' of a wrong type",
    ),
    "an array too few": (lambda arrays, _: arrays.pop(TABLE), f"{TABLE!r} is missing"),
    "an array too many": (
        lambda arrays, _: arrays.update(more=np.ones(1)),
        "'more' is unknown",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_folder_that_does_not_hold_together_is_refused(folder, case):
    change, message = CHANGES[case]
    arrays, manifest = read_checkpoint(folder)
    manifest = copy.deepcopy(manifest)
    change(arrays, manifest)
    checkpoint.write(folder, arrays, manifest)
    with pytest.raises(CheckpointError, match=message) as raised:
        st.load(folder)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "no folder": lambda run: run.rename(run.with_name("elsewhere")),
    "a manifest cut off": lambda run: _cut(run / "manifest.json"),
    "a bit of the manifest flipped": lambda run: _flip(run / "manifest.json"),
    "an array cut off": lambda run: _cut(sorted(run.glob("*.npy"))[0]),
    "a bit of an array flipped": lambda run: _flip(sorted(run.glob("*.npy"))[3]),
    "an array lost": lambda run: sorted(run.glob("*.npy"))[-1].unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused(folder, damage):
    DAMAGE[damage](folder)
    with pytest.raises(CheckpointError) as raised:
        st.load(folder)
    assert raised.value.exit_code == errors.CheckpointError.exit_code
    assert str(folder) in str(raised.value) and "\n" not in str(raised.value)


def test_a_refused_state_dict_changes_nothing():
    trainer = small_dlrm.trainer()
    before = trainer.state_dict()
    arrays = {name: array + 1 for name, array in before.items()}
    arrays["top.layers.1.bias"] = np.ones(2, np.float32)
    with pytest.raises(CheckpointError, match=r"'top.layers.1.bias' is \(2,\) float32"):
        trainer.load_state_dict(arrays)
    assert_same_state(trainer.state_dict(), before)
