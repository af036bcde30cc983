# SPDX-License-Identifier: Apache-2.0
"""`Trainer` from outside: a step, an epoch, scores, and what it refuses."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.data import Batch, Ragged
from sparsetrain.errors import ConfigError, DataError, NumericalError, SparsetrainError
from tests import small_dlrm
from tests.array_layouts import LAYOUTS
from tests.heap import STATM, resident_bytes
from tests.helpers import slow_except
from tests.small_dlrm import NUM_DENSE, ROWS, assert_same_state

# --- A step ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", slow_except(["single", "mean", "weighted"], small_dlrm.KINDS))
def test_the_loss_of_a_batch_falls(kind):
    trainer, batch = small_dlrm.trainer(kind), small_dlrm.batch(64, kind=kind)
    losses = [float(trainer.step(batch)) for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]
    assert trainer.steps == 40


def test_a_trainer_says_what_it_is():
    trainer = small_dlrm.trainer()
    trainer.step(small_dlrm.batch(4))
    assert repr(trainer) == f"<Trainer: DLRM, adagrad, 1 steps, on {trainer.target.kind.name}>"
    assert repr(trainer.quantized()) == "<QuantizedModel: DLRM, 1 steps, on llvm>"


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_a_trainer_is_saved_and_loaded_rather_than_copied(copied):
    with pytest.raises(
        TypeError, match="a Trainer cannot be pickled or copied: save it to a folder"
    ):
        copied(small_dlrm.trainer())


def test_a_model_of_another_kind_is_told_what_to_derive_from_and_another_way():
    class Half:
        def export(self): ...

    with pytest.raises(ConfigError, match="a Half is not a .*models.Model, .*value_and_grad"):
        st.Trainer(Half(), optimizer=st.optim.sgd(0.1))
    with pytest.raises(ConfigError, match="model is the class DLRM, .*: add encoder="):
        st.Trainer(st.models.DLRM, optimizer=st.optim.sgd(0.1))


def test_threads_that_make_and_train_models_at_once_get_what_one_gets():
    together = threading.Barrier(4)

    def trained(seed: int, wait: bool) -> dict[str, np.ndarray]:
        if wait:
            together.wait()
        trainer = st.Trainer(small_dlrm.model(), st.optim.adagrad(0.05, clip_norm=0.1), seed=seed)
        for step in range(3):
            trainer.step(small_dlrm.batch(16, step))
        return trainer.state_dict()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(trained, range(4), [True] * 4))
    for seed, state in enumerate(found):
        assert_same_state(state, trained(seed, wait=False))


def test_a_step_returns_the_loss_from_before_it():
    trainer, batch = small_dlrm.trainer(), small_dlrm.batch(37)
    for _ in range(3):
        expected = trainer.evaluate(batch)["logloss"]
        loss = trainer.step(batch)
        assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert repr(loss) == f"Loss({float(loss):.6f})"
    assert f"{loss:.3f}" == f"{float(loss):.3f}"


@pytest.mark.parametrize(
    "given", [({}, [[1]], [1]), {"I1": [1]}, None], ids=["tuple", "dict", "None"]
)
def test_a_step_on_what_is_no_batch_says_how_to_make_one(given):
    with pytest.raises(
        DataError, match=r"step needs a Batch, not a \w+: use encoder\.encode\(table\)"
    ):
        small_dlrm.trainer().step(given)


def test_a_loss_that_is_read_late_is_still_that_of_its_step():
    trainer = small_dlrm.trainer()
    losses = [trainer.step(small_dlrm.batch(16, seed)) for seed in range(5)]
    again = small_dlrm.trainer()
    assert [float(loss) for loss in losses] == [
        float(again.step(small_dlrm.batch(16, seed))) for seed in range(5)
    ]


def test_the_seed_decides_the_initial_weights():
    first, same, other = (small_dlrm.trainer(seed=seed).state_dict() for seed in (1, 1, 2))
    assert_same_state(first, same)
    for name in first:
        if not name.endswith(":sum"):
            assert (first[name] != other[name]).any(), name


def test_state_dict_holds_copies_of_every_table_and_slot():
    trainer = small_dlrm.trainer()
    state = trainer.state_dict()
    for feature, rows in enumerate(ROWS, 1):
        assert state[f"embeddings.C{feature}.weight"].shape == (rows, 8)
        assert state[f"embeddings.C{feature}.weight:sum"].shape == (rows, 8)
    assert state["top.layers.1.bias"].shape == (1,)
    for array in state.values():
        array[...] = 7
    assert_same_state(trainer.state_dict(), small_dlrm.trainer().state_dict())


def test_load_state_dict_continues_where_state_dict_was_taken():
    trainer, other = small_dlrm.trainer(), small_dlrm.trainer(seed=5)
    trainer.step(small_dlrm.batch(37))
    other.load_state_dict(trainer.state_dict())
    for each in (trainer, other):
        each.step(small_dlrm.batch(37, seed=1))
    assert_same_state(trainer.state_dict(), other.state_dict())


@pytest.fixture(scope="module")
def plain_state():
    return {kind: _state_after(small_dlrm.batch(37, kind=kind), kind) for kind in _BOTH}


_BOTH = ("single", "weighted")


def _state_after(batch: Batch, kind: str) -> dict[str, np.ndarray]:
    trainer = small_dlrm.trainer(kind)
    trainer.step(batch)
    return trainer.state_dict()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_trains_alike_however_its_arrays_lie_in_memory(layout, plain_state):
    arrange = LAYOUTS[layout]
    plain = small_dlrm.batch(37)
    batch = Batch(arrange(plain.dense), arrange(plain.ids), arrange(plain.labels))
    assert_same_state(_state_after(batch, "single"), plain_state["single"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bags_train_alike_however_their_arrays_lie_in_memory(layout, plain_state):
    arrange = LAYOUTS[layout]
    plain = small_dlrm.batch(37, kind="weighted")
    ids = [Ragged(arrange(b.ids), arrange(b.offsets), arrange(b.weights)) for b in plain.ids]
    batch = Batch(arrange(plain.dense), ids, arrange(plain.labels))
    assert_same_state(_state_after(batch, "weighted"), plain_state["weighted"])


# --- What a step refuses ------------------------------------------------------------------------


def _two(dense=NUM_DENSE, ids=((0, 0, 0), (0, 0, 0)), labels=(0, 1)):
    """Two rows for the models of `small_dlrm`, but for what an argument changes."""
    return Batch(np.ones((2, dense)), ids, labels)


_ONE_EACH = Ragged([0, 1], [0, 1, 2])
_WEIGHTED = Ragged([0, 1], [0, 1, 2], [1.0, 1.0])

MISFITS = {
    "no labels": ("single", lambda: _two(labels=None), DataError, "needs labels"),
    "a feature too few": (
        "single",
        lambda: _two(ids=[[0, 0], [0, 0]]),
        DataError,
        "the batch has 2 categorical features, the model 3",
    ),
    "another number of dense features": (
        "single",
        lambda: _two(dense=12),
        DataError,
        "the batch has 12 dense features, the model 13",
    ),
    "an id beyond its table": (
        "single",
        lambda: _two(ids=[[0, 0, 0], [0, 0, 7]]),
        DataError,
        "row 1, feature C3: id 7 is outside its table of 7 rows",
    ),
    "an id beyond int32": (
        "single",
        lambda: _two(ids=[[2**40, 0, 0], [0, 0, 0]]),
        DataError,
        f"row 0, feature C1: id {2**40} is outside its table of 50 rows",
    ),
    "an id in a bag beyond its table": (
        "sum",
        lambda: _two(ids=[_ONE_EACH, _ONE_EACH, Ragged([0, 7], [0, 0, 2])]),
        DataError,
        "row 1, feature C3: id 7 is outside its table of 7 rows",
    ),
    "bags for a model of single ids": (
        "single",
        lambda: _two(ids=[_ONE_EACH] * 3),
        ConfigError,
        "takes one id per feature",
    ),
    "no weights for a weighted model": (
        "weighted",
        lambda: _two(ids=[_ONE_EACH] * 3),
        ConfigError,
        "lacks per-sample weights",
    ),
    "weights for an unweighted model": (
        "sum",
        lambda: _two(ids=[_WEIGHTED] * 3),
        ConfigError,
        "has per-sample weights",
    ),
    "weights for some features": (
        "weighted",
        lambda: _two(ids=[_WEIGHTED, _ONE_EACH, _WEIGHTED]),
        ConfigError,
        "for all features of a batch or none",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_batch_that_does_not_fit_is_refused_and_nothing_changes(misfit):
    kind, make, error, message = MISFITS[misfit]
    trainer = small_dlrm.trainer(kind)
    before = trainer.state_dict()
    with pytest.raises(error, match=message) as raised:
        trainer.step(make())
    assert "\n" not in str(raised.value)
    assert_same_state(trainer.state_dict(), before)
    assert trainer.steps == 0


def _huge(value: float) -> Batch:
    plain = small_dlrm.batch(64)
    return Batch(np.sign(plain.dense) * np.float32(value), plain.ids, plain.labels)


def test_a_loss_that_is_not_finite_stops_the_step_before_it_writes():
    trainer = small_dlrm.trainer()
    trainer.step(small_dlrm.batch(16))
    before = trainer.state_dict()
    with pytest.raises(NumericalError, match="the loss is .* in step 2: nothing was updated"):
        trainer.step(_huge(3e38))
    assert_same_state(trainer.state_dict(), before)
    assert trainer.steps == 1


@pytest.mark.parametrize("name", ["C1", "bottom.layers.0.bias", "top.layers.0.weight"])
@pytest.mark.parametrize("kind", slow_except(["single"], ["single", "cross"]))
def test_weights_that_are_not_finite_show_in_every_score_and_step(kind, name):
    trainer = small_dlrm.trainer(kind, encoder=small_dlrm.encoder())
    rows, state = small_dlrm.raw_rows(20), trainer.state_dict()
    name = f"embeddings.{name}.weight" if name == "C1" else name
    state[name][...] = np.nan
    trainer.load_state_dict(state)
    for ask in (trainer.predict, trainer.evaluate):
        with pytest.raises(NumericalError, match=f"a row is nan: parameter '{name}' holds"):
            ask(rows)
    with pytest.raises(NumericalError, match="the loss is nan"):
        trainer.fit(rows, progress=None)


def test_a_slot_that_overflowed_ends_a_run_before_its_checkpoint(tmp_path):
    trainer, batches = small_dlrm.trainer(), [small_dlrm.batch(16, seed) for seed in range(4)]
    trainer.fit(batches, run=tmp_path / "run", progress=None)
    state = trainer.state_dict()
    state["embeddings.C2.weight:sum"][3, 1] = np.inf
    trainer.load_state_dict(state)
    slot = r"step 8: slot 'embeddings\.C2\.weight:sum' holds numbers that are not finite: lower the"
    with pytest.raises(NumericalError, match=slot):
        trainer.fit(batches, progress=None)
    trainer = st.load(tmp_path / "run")
    trainer.load_state_dict(state)
    with pytest.raises(NumericalError, match=rf"{slot} learning rate; the last checkpoint is "):
        trainer.fit(batches, run=tmp_path / "run", resume=True, epochs=2, progress=None)
    assert st.load(tmp_path / "run").steps == 4


def test_what_is_not_finite_is_not_saved(tmp_path):
    trainer = small_dlrm.trainer()
    state = trainer.state_dict()
    state["top.layers.0.bias"][-1] = np.nan
    trainer.load_state_dict(state)
    with pytest.raises(NumericalError, match="step 0: parameter 'top.layers.0.bias' holds numbers"):
        trainer.save(tmp_path / "saved")
    with pytest.raises(NumericalError, match="step 0: parameter 'top.layers.0.bias' holds numbers"):
        trainer.quantized().save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_gradient_that_is_not_finite_stops_the_step_before_it_writes():
    # Logits of 1e30 * 1e-35 are small; the gradient 1e30 * 1e12 of the layer below is too large.
    trainer = small_dlrm.trainer()
    state = trainer.state_dict()
    state["top.layers.0.weight"][...], state["top.layers.0.bias"][...] = 0, 1e-35
    state["top.layers.1.weight"][...] = 1e30
    trainer.load_state_dict(state)
    assert trainer.evaluate(_huge(1e12))["logloss"] < 1
    with pytest.raises(NumericalError, match="'top.layers.0.weight' is not finite in step 1"):
        trainer.step(_huge(1e12))
    assert_same_state(trainer.state_dict(), state)


def test_a_diverging_run_does_not_pass_for_a_trained_one():
    trainer = small_dlrm.trainer(optimizer=st.optim.sgd(1e6))
    with pytest.raises(NumericalError):
        trainer.fit([small_dlrm.batch(64, seed) for seed in range(200)], progress=None)
    assert all(np.isfinite(array).all() for array in trainer.state_dict().values())


@pytest.mark.parametrize("target", ["vulkan", "gpu", 3])
def test_an_unknown_target_is_refused(target):
    with pytest.raises(ConfigError, match="is not supported: use 'auto', 'cpu', 'cuda', 'llvm'"):
        st.Trainer(small_dlrm.model(), st.optim.sgd(0.1), target=target)


# --- An epoch -----------------------------------------------------------------------------------


class Noted:
    """A progress that remembers what it was told."""

    def __init__(self):
        self.total, self.batches, self.finished = None, [], 0

    def start(self, total, title):
        self.total = total

    def advance(self, rows, loss):
        self.batches.append((rows, loss))

    def note(self, text): ...

    def finish(self):
        self.finished += 1


def _training_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("sparsetrain")]


def _with_encoder(**options) -> st.Trainer:
    return small_dlrm.trainer(encoder=small_dlrm.encoder(), **options)


def test_the_test_encoder_learns_the_tables_of_the_test_model():
    assert small_dlrm.encoder().rows == ROWS
    assert small_dlrm.encoder().num_dense == NUM_DENSE


def test_fit_trains_on_every_row_the_last_partial_batch_included():
    trainer, noted = _with_encoder(), Noted()
    history = trainer.fit(small_dlrm.raw_rows(100), batch_size=32, progress=noted)
    assert [rows for rows, _ in noted.batches] == [32, 32, 32, 4]
    assert (noted.total, noted.finished) == (100, 1)
    assert (trainer.steps, trainer.epochs) == (4, 1)
    assert (history["rows"], history["stopped"]) == (100, False)
    assert history["rows_per_s"] == pytest.approx(100 / history["seconds"])
    (epoch,) = history["epochs"]
    assert epoch["rows"] == 100 and "valid" not in epoch
    mean = sum(rows * loss for rows, loss in noted.batches) / 100
    assert history["loss"] == epoch["loss"] == pytest.approx(mean)
    assert not _training_threads()


def test_fit_takes_the_same_steps_as_a_loop_over_its_batches():
    rows = small_dlrm.raw_rows(100)
    fitted, stepped = _with_encoder(), _with_encoder()
    fitted.fit(rows, batch_size=32, epochs=2, progress=None)
    dataset = st.data.Dataset(rows, stepped.encoder)
    for epoch in range(2):
        for batch in dataset.batches(32, seed=stepped.seed, epoch=epoch):
            stepped.step(batch)
    assert_same_state(fitted.state_dict(), stepped.state_dict())


def test_fit_twice_equals_fit_for_two_epochs():
    rows = small_dlrm.raw_rows(100)
    once, twice = _with_encoder(seed=3), _with_encoder(seed=3)
    once.fit(rows, epochs=2, progress=None)
    for _ in range(2):
        twice.fit(rows, progress=None)
    assert once.epochs == twice.epochs == 2
    assert_same_state(once.state_dict(), twice.state_dict())


def test_shuffling_follows_the_seed_and_can_be_left_out():
    rows = small_dlrm.raw_rows(100)
    losses = {}
    for shuffle in (True, False):
        noted = Noted()
        _with_encoder().fit(rows, batch_size=10, shuffle=shuffle, progress=noted)
        losses[shuffle] = [loss for _, loss in noted.batches]
    trainer = _with_encoder()
    in_order = st.data.Dataset(rows, trainer.encoder).batches(10)
    assert losses[False] == [float(trainer.step(batch)) for batch in in_order]
    assert losses[True] != losses[False]


def test_each_epoch_is_validated():
    trainer, valid = _with_encoder(), small_dlrm.raw_rows(60, seed=1)
    history = trainer.fit(small_dlrm.raw_rows(100), validation=valid, epochs=2, progress=None)
    assert [epoch["valid"]["rows"] for epoch in history["epochs"]] == [60, 60]
    assert history["epochs"][-1]["valid"] == trainer.evaluate(valid)
    assert history["rows"] == 200


def test_stop_is_asked_after_every_batch_and_ends_the_run():
    trainer, asked = _with_encoder(), []

    def stop():
        asked.append(trainer.steps)
        return trainer.steps == 5

    rows = small_dlrm.raw_rows(100)
    history = trainer.fit(rows, validation=rows, epochs=3, batch_size=32, progress=None, stop=stop)
    assert asked == [1, 2, 3, 4, 5]
    assert (trainer.steps, trainer.epochs) == (5, 1)
    assert (history["stopped"], history["rows"]) == (True, 132)
    assert [epoch["rows"] for epoch in history["epochs"]] == [100, 32]
    assert "valid" not in history["epochs"][-1]
    assert not _training_threads()


def test_an_error_amid_an_epoch_ends_progress_and_the_reading_thread():
    trainer, noted = _with_encoder(optimizer=st.optim.sgd(1e38)), Noted()
    with pytest.raises(NumericalError):
        trainer.fit(small_dlrm.raw_rows(200), batch_size=2, progress=noted)
    assert noted.batches and noted.finished == 1
    assert not _training_threads()


class Telling(Noted):
    """One that remembers notes too."""

    def __init__(self):
        super().__init__()
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize("labels, told", [((0,), 1), ((1,), 1), ((0, 1), 0)])
def test_labels_that_are_all_one_are_told_of_once(labels, told):
    trainer, telling = _with_encoder(), Telling()
    rows = small_dlrm.raw_rows(40)
    rows["label"] = [labels[row % len(labels)] for row in range(40)]
    trainer.fit(rows, batch_size=16, epochs=2, progress=telling)
    assert len(telling.notes) == told
    assert all(f"every label was {labels[0]}: nothing" in note for note in telling.notes)


def test_batches_of_ones_own_are_trained_on_as_they_come():
    trainer, noted = small_dlrm.trainer(), Noted()
    trainer.fit([small_dlrm.batch(5), small_dlrm.batch(3)], batch_size=100, progress=noted)
    assert [rows for rows, _ in noted.batches] == [5, 3]
    assert noted.total is None


REFUSED = {
    "no epochs": ({"epochs": 0}, "epochs is 0"),
    "epochs as text": ({"epochs": "1"}, "epochs is '1'; it must be a whole number"),
    "half a row": ({"batch_size": 12.5}, "batch_size is 12.5; it must be a whole number"),
    "stopping by nothing": (
        {"early_stopping": st.EarlyStopping(patience=2)},
        r"early_stopping needs validation rows: fit\(\.\.\., validation=\.\.\.\)",
    ),
    "validating nothing": ({"validate_every": 2}, "validate_every needs validation rows"),
    "no rows in a batch": ({"batch_size": 0}, "batch_size is 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_fit_refuses_a_run_that_would_do_nothing(case):
    options, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        _with_encoder().fit(small_dlrm.raw_rows(10), progress=None, **options)


def test_rows_without_an_encoder_are_refused():
    with pytest.raises(ConfigError, match="need an encoder"):
        small_dlrm.trainer().fit(small_dlrm.raw_rows(10), progress=None)


# --- Scores -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scored():
    trainer = small_dlrm.trainer()
    batches = [small_dlrm.batch(size, seed) for seed, size in enumerate((128, 37, 1))]
    for _ in range(5):
        trainer.fit(batches, progress=None)
    return trainer, batches


def test_evaluate_agrees_with_predict(scored):
    trainer, batches = scored
    p = trainer.predict(batches).astype(np.float64)
    y = np.concatenate([batch.labels for batch in batches])
    pairs = (p[y == 1][:, None] - p[y == 0]) / 2
    expected = {
        "rows": 166,
        "auc": np.mean((pairs > 0) + 0.5 * (pairs == 0)),
        "logloss": -np.mean(np.log(np.where(y == 1, p, 1 - p))),
        "calibration": p.sum() / y.sum(),
        "positive_rate": y.mean(),
    }
    result = trainer.evaluate(batches)
    for name, value in expected.items():
        assert result[name] == pytest.approx(value, rel=1e-5), name
    assert result["ne"] == pytest.approx(result["logloss"] / result["constant_logloss"])


def test_rows_are_grouped_by_the_ids_of_a_feature(scored):
    trainer, batches = scored
    metrics = st.metrics.GroupedAUC()
    for batch in batches:
        metrics.update(trainer.predict(batch), batch.labels, batch.ids[:, 1])
    expected = metrics.result()
    assert expected["groups"] > 1
    result = trainer.evaluate(batches, group_by="C2")
    assert {name: result[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ConfigError, match="group_by is 'user'; it must be one of the features, C1"):
        trainer.evaluate(batches, group_by="user")


def test_bags_group_rows_only_where_each_has_one_id():
    model, batch = small_dlrm.model("sum"), small_dlrm.batch(9, kind="sum")
    with pytest.raises(DataError, match="feature C1: it has . ids"):
        model.read("C1", batch)


def test_scores_do_not_depend_on_labels_or_on_the_batch_a_row_is_in(scored):
    trainer, (batch, *_) = scored
    expected = trainer.predict(batch)
    unlabelled = [
        Batch(batch.dense[start : start + 50], batch.ids[start : start + 50])
        for start in range(0, 128, 50)
    ]
    np.testing.assert_allclose(trainer.predict(unlabelled), expected, rtol=1e-6)
    assert expected.dtype == np.float32 and expected.shape == (128,)


def test_scoring_changes_nothing(scored):
    trainer, batches = scored
    before = trainer.state_dict()
    trainer.predict(batches)
    trainer.evaluate(batches)
    assert_same_state(trainer.state_dict(), before)


def test_raw_rows_are_scored_through_the_encoder():
    trainer, rows = _with_encoder(), small_dlrm.raw_rows(40, seed=2)
    trainer.fit(small_dlrm.raw_rows(100), progress=None)
    rows["C1"][0], rows["C2"][1], rows["I1"][2] = "fffffff0", None, None  # unseen and missing
    expected = trainer.predict(trainer.encoder.encode(rows))
    unlabelled = {name: column for name, column in rows.items() if name != "label"}
    np.testing.assert_array_equal(trainer.predict(unlabelled), expected)
    np.testing.assert_allclose(trainer.predict(unlabelled, batch_size=7), expected, rtol=1e-6)
    assert trainer.evaluate(rows)["rows"] == 40


def test_an_extreme_logit_is_a_probability_of_0_or_1():
    scores = small_dlrm.trainer().predict(_huge(1e15))
    assert set(np.unique(scores)) == {0.0, 1.0}


def test_evaluation_needs_labels():
    with pytest.raises(SparsetrainError, match="needs labels"):
        small_dlrm.trainer().evaluate(small_dlrm.batch(5, labels=False))


@pytest.mark.skipif(not STATM.exists(), reason="reads the memory in use from Linux's /proc")
def test_steps_take_no_new_memory_after_the_first_ones():
    trainer = small_dlrm.trainer("single")
    batches = [small_dlrm.batch(4096, seed=seed) for seed in range(4)]
    for batch in batches * 3:
        trainer.step(batch)
    before = resident_bytes()
    for batch in batches * 10:
        trainer.step(batch)
    assert resident_bytes() - before < 2**20


def test_a_policy_of_one_s_own_is_refused_because_it_cannot_be_saved():
    with pytest.raises(ConfigError, match="precision must be a name"):
        st.Trainer(small_dlrm.model(), st.optim.sgd(0.1), precision=st.precision.BFLOAT16)
