# SPDX-License-Identifier: Apache-2.0
"""With patience a run ends with the best weights it had; what is resumed is its last state."""

import json
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain import checkpoint
from sparsetrain.cli import main
from sparsetrain.cli.saved_model import note_checkpoint
from sparsetrain.errors import CheckpointError, ConfigError, DataError, ResourceError
from sparsetrain.training import state
from sparsetrain.training import trainer as training_trainer
from sparsetrain.training.fit.best import Best
from sparsetrain.training.run import Run, chosen, folder
from tests import small_dlrm
from tests.helpers import read_checkpoint
from tests.small_dlrm import assert_same_state

RULE = st.EarlyStopping(patience=2)
EPOCH = 7  # steps, of 16 rows
# Best at the second validation of the four that are made before patience ends.
SCORES = [0.6, 0.5, 0.55, 0.56, 0.7, 0.7]
OPTIMIZERS = {
    "adagrad": lambda: st.optim.adagrad(0.05),
    "adam, exact": lambda: st.optim.adam(0.01, mode="exact"),
}


def make(scores=SCORES, optimizer=None) -> st.Trainer:
    """A trainer whose validations score as told."""
    made = small_dlrm.trainer(encoder=small_dlrm.encoder(), optimizer=optimizer, seed=3)
    return scripted(made, scores)


def scripted(trainer: st.Trainer, scores) -> st.Trainer:
    following = iter(scores)
    trainer._evaluate = lambda *_, **__: {"logloss": next(following), "auc": None, "rows": 1}
    return trainer


def fit(trainer: st.Trainer, epochs: int = 6, rule=RULE, **options) -> dict:
    options = {"progress": None, "batch_size": 16, "early_stopping": rule, **options}
    options = {"validation": small_dlrm.raw_rows(20), **options}
    return trainer.fit(small_dlrm.raw_rows(100), epochs=epochs, **options)


def loaded(run) -> st.Trainer:
    return small_dlrm.share_programs(st.load(run))


def after(epochs: int, optimizer=None) -> dict[str, np.ndarray]:
    """The state of a run of so many epochs that nothing ends early."""
    trainer = make([0.5] * epochs, optimizer)
    fit(trainer, epochs, rule=None)
    return trainer.state_dict()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("in_folder", [False, True])
def test_the_trainer_ends_as_it_was_at_the_best_validation(tmp_path, optimizer, in_folder):
    made = OPTIMIZERS[optimizer]
    trainer = make(optimizer=made())
    history = fit(trainer, run=tmp_path / "run" if in_folder else None)
    assert (history["stopped_early"], history["checkpoint"]) == (True, "best")
    assert (trainer.steps, trainer.epochs) == (2 * EPOCH, 2)
    assert history["best"] == {"step": 2 * EPOCH, "value": 0.5}
    assert_same_state(trainer.state_dict(), after(2, made()))


def test_the_best_also_counts_where_epochs_end_first():
    trainer = make()
    history = fit(trainer, epochs=3)
    assert (history["stopped_early"], history["checkpoint"], trainer.epochs) == (False, "best", 2)


def test_training_goes_on_from_the_best():
    trainer = make()
    fit(trainer)
    scripted(trainer, [0.4])
    fit(trainer, epochs=1)
    assert_same_state(trainer.state_dict(), after(3))


# Why -> options, whether the last batch is stopped at.
LAST = {
    "nothing is watched": {"rule": None},
    "it is only watched": {"rule": st.EarlyStopping("logloss")},
    "it was stopped": {"stop": lambda: True},
}


@pytest.mark.parametrize("why", LAST)
def test_the_last_weights_stay_where(why):
    trainer = make()
    history = fit(trainer, epochs=3, **LAST[why])
    assert history["checkpoint"] == "latest"
    assert trainer.steps == (1 if "stop" in LAST[why] else 3 * EPOCH)


def test_no_score_that_is_a_number_leaves_the_last_weights():
    trainer = make([float("nan")] * 3)
    assert fit(trainer, epochs=2)["checkpoint"] == "latest"
    assert trainer.epochs == 2


def test_it_is_said_where_weights_are_not_the_last(capsys):
    fit(make(), progress="auto")
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == ("the weights are from step 14 of 28, the best validation: logloss 0.5000")


def test_what_is_resumed_is_the_last_state(tmp_path):
    """Best after two epochs, cut after three: the fourth begins with the weights of the third."""
    first = make()
    fit(first, epochs=3, run=tmp_path / "run")
    assert st.load(tmp_path / "run").epochs == 3
    second = scripted(loaded(tmp_path / "run"), SCORES[3:])
    history = fit(second, epochs=9, run=tmp_path / "run", resume=True)
    assert (history["rows"], history["stopped_early"], second.epochs) == (100, True, 2)
    assert_same_state(second.state_dict(), after(2))
    assert_same_state(st.load(tmp_path / "run").state_dict(), after(4))


def test_a_run_that_had_ended_ends_with_the_best_again(tmp_path):
    fit(make(), run=tmp_path / "run")
    again = loaded(tmp_path / "run")
    history = fit(again, run=tmp_path / "run", resume=True)
    assert (history["rows"], history["checkpoint"], again.epochs) == (0, "best", 2)


@pytest.mark.parametrize("where", [None, "other"])
def test_resumed_without_its_folder_a_run_has_the_best_it_met_since(tmp_path, capsys, where):
    fit(make(), epochs=3, run=tmp_path / "run")
    second = scripted(loaded(tmp_path / "run"), SCORES[3:])
    run = where and tmp_path / where
    history = fit(second, epochs=9, resume=True, run=run, progress="auto")
    assert (history["checkpoint"], second.epochs) == ("latest", 4)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "the best validation was step 14; its weights are not kept here, these are the last"
    )


class Killed(BaseException):
    """Stands for SIGKILL: nothing but what is on the disk stays."""


def test_killed_between_its_two_pointers_a_resumed_run_has_its_best(tmp_path, monkeypatch):
    run, write = tmp_path / "run", folder.write_pointer

    def killed(where, pointer, name):
        if pointer == "BEST" and name.endswith("14"):
            raise Killed
        write(where, pointer, name)

    with monkeypatch.context() as patched:
        patched.setattr(folder, "write_pointer", killed)
        with pytest.raises(Killed):
            fit(make(), run=run)
    assert (run / "BEST").read_text() != (run / "LATEST").read_text() == "step-000000000014\n"
    second = scripted(loaded(run), SCORES[2:])
    history = fit(second, run=run, resume=True)
    assert (history["checkpoint"], history["best"]["step"], second.steps) == ("best", 14, 14)
    assert st.load(run).steps == 28 and st.load_predictor(run).steps == 14
    assert_same_state(second.state_dict(), after(2))


def test_a_best_checkpoint_that_is_damaged_leaves_the_last_weights(tmp_path, capsys):
    run = st.Run(tmp_path / "run")
    fit(make(), run=run)
    largest = max(run.best.glob("*.npy"), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[-1] ^= 1
    largest.write_bytes(content)
    again = loaded(run.folder)
    history = fit(again, run=run, resume=True, progress="auto")
    assert (history["checkpoint"], again.steps, again.epochs) == ("latest", 28, 4)
    assert_same_state(again.state_dict(), after(4))
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("the best validation was step 14; its weights cannot be read (")
    assert f"{largest.name} (array" in said and said.endswith("), these are the last")


@pytest.fixture
def interruptible():
    """SIGINT raises, also in what a shell started in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("in_folder", [False, True])
def test_interrupts_while_the_best_is_put_back_wait_until_it_is(
    tmp_path, monkeypatch, optimizer, in_folder
):
    module, name = (state, "check_kinds") if in_folder else (training_trainer, "load_arrays_")
    whole = getattr(module, name)

    def interrupted(target, *others):
        next(iter(target.values()))[...] = 0
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        whole(target, *others)

    monkeypatch.setattr(module, name, interrupted)
    trainer = make(optimizer=OPTIMIZERS[optimizer]())
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, run=tmp_path / "run" if in_folder else None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert (trainer.steps, trainer.epochs) == (14, 2)
    assert_same_state(trainer.state_dict(), after(trainer.epochs, OPTIMIZERS[optimizer]()))
    train_on(trainer)
    expected = make([0.5] * trainer.epochs, OPTIMIZERS[optimizer]())
    fit(expected, trainer.epochs, rule=None)
    train_on(expected)
    assert_same_state(trainer.state_dict(), expected.state_dict())


def train_on(trainer: st.Trainer) -> None:
    trainer.step(small_dlrm.batch(16))


def test_no_memory_for_a_copy_names_the_way_out(monkeypatch):
    trainer = make()
    monkeypatch.setattr(
        "sparsetrain.training.fit.best._copied", lambda *_: (_ for _ in ()).throw(MemoryError)
    )
    with pytest.raises(
        ResourceError, match=r"best weights and slots, [\d,]+ bytes.*=FOLDER.*--out"
    ):
        fit(trainer)


def test_the_copy_is_written_in_place_the_second_time():
    trainer = make()
    best = Best(RULE, None)
    best.keep(trainer)
    kept = {name: array.ctypes.data for name, array in best._kept.arrays.items()}
    trainer.step(small_dlrm.batch(8))
    best.keep(trainer)
    assert {name: array.ctypes.data for name, array in best._kept.arrays.items()} == kept
    assert_same_state(best._kept.arrays, trainer.state_dict())


# Rule of the run -> which checkpoint is meant where nobody says.
MEANT = {"patience": (RULE, "best"), "none": (None, "latest")}


@pytest.mark.parametrize("kind", MEANT)
def test_predictions_are_those_of_the_checkpoint_that_is_meant(tmp_path, kind):
    rule, which = MEANT[kind]
    fit(make(), epochs=3, rule=rule, run=tmp_path / "run")
    assert chosen(tmp_path / "run", "auto") == which
    expected = st.load(tmp_path / "run", checkpoint=which).steps
    assert st.load_predictor(tmp_path / "run").steps == expected
    assert st.load(tmp_path / "run").steps == 3 * EPOCH
    assert st.load_predictor(tmp_path / "run", checkpoint="latest").steps == 3 * EPOCH


@pytest.mark.parametrize("rule", [None, RULE])
@pytest.mark.parametrize("at", [1, 2], ids=["which is found out", "it is read"])
def test_a_run_that_goes_on_may_prune_its_latest_while(tmp_path, monkeypatch, rule, at):
    run, opened = Run(tmp_path / "run", keep=1), checkpoint.opened
    fit(make(), epochs=3, rule=rule, run=run)
    arrays, manifest = read_checkpoint(run.latest)
    times = []

    def after_a_save(path):
        times.append(path)
        if len(times) == at:
            run.save(99, arrays, {**manifest, "steps": 99}, best=False)
        return opened(path)

    monkeypatch.setattr(checkpoint, "opened", after_a_save)
    assert st.load_predictor(run.folder).steps == (14 if rule else 99)


def test_a_run_whose_latest_cannot_be_read_is_refused(tmp_path):
    fit(make(), epochs=2, run=tmp_path / "run")
    (st.Run(tmp_path / "run").latest / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="manifest.json"):
        st.load_predictor(tmp_path / "run")


# Rule of the run, step of the checkpoint that was taken -> whether it is told as the best.
TOLD = {
    "the best": (RULE, 14, True),
    "the latest": (RULE, 21, False),
    "one that was the latest before": (RULE, 7, False),
    "one of a run without early stopping": (None, 14, False),
}


@pytest.mark.parametrize("case", TOLD)
def test_a_checkpoint_is_told_as_the_best_if_it_is(tmp_path, capsys, case):
    rule, step, told = TOLD[case]
    fit(make(), epochs=3, rule=rule, run=tmp_path / "run")
    note_checkpoint(tmp_path / "run", "auto", step)
    note_checkpoint(tmp_path / "run", "best", step)
    assert capsys.readouterr().err.count("this is its best checkpoint, of step 14") == told


@pytest.mark.parametrize("kind", MEANT)
def test_inspect_names_the_best_beside_the_latest(tmp_path, capsys, kind):
    rule, which = MEANT[kind]
    fit(make(), epochs=3, rule=rule, run=tmp_path / "run")
    assert main(["inspect", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    taken = {
        "best": "evaluate, predict and quantize use it",
        "latest": "--checkpoint best takes it",
    }
    assert "after 21 steps" in said and f"the best is step-000000000014: {taken[which]}" in said
    make().save(tmp_path / "saved")
    assert main(["inspect", str(tmp_path / "saved")]) == 0
    assert "checkpoint" not in capsys.readouterr().out


def test_a_folder_that_is_no_run_is_what_it_is(tmp_path):
    trainer = make()
    trainer.save(tmp_path / "saved")
    assert chosen(tmp_path / "saved", "auto") == "latest"
    assert st.load_predictor(tmp_path / "saved").steps == 0
    message = "checkpoint is 'bset'; it must be 'latest', 'best' or 'auto'"
    with pytest.raises(ConfigError, match=message):
        st.load_predictor(tmp_path / "saved", checkpoint="bset")


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory):
    """A run of the command line that gets worse: labels are noise."""
    folder = tmp_path_factory.mktemp("overfitted")
    rng = np.random.default_rng(0)
    for name, count in (("train", 300), ("valid", 300)):
        table = pa.table(small_dlrm.raw_rows(count, seed=len(name)))
        noise = pa.array(rng.integers(0, 2, count))
        table = table.set_column(table.schema.get_field_index("label"), "label", noise)
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


def train(folder, *options: str) -> int:
    files = [str(folder / "train.parquet"), "--valid", str(folder / "valid.parquet")]
    small = ["--set", "model.dim=4", "--set", "model.bottom=8", "--set", "model.top=8"]
    return main(["train", *files, *small, "--lr", "0.3", "--epochs", "12", *options])


def test_commands_score_and_predict_with_the_best(overfitted, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert train(overfitted, "--patience", "2", "--out", run) == 0
    said = capsys.readouterr().out
    assert "stopped early: weights and scores are from step " in said
    result = evaluated(capsys, run, overfitted)
    latest = evaluated(capsys, run, overfitted, "--checkpoint", "latest")
    best = min(line["logloss"] for line in st.Run(run).log() if line["split"] == "valid")
    assert result["logloss"] == pytest.approx(best, rel=1e-6) and best < latest["logloss"]
    assert train(overfitted, "--patience", "2", "--json") == 0  # without a folder, too
    unsaved = json.loads(capsys.readouterr().out)
    assert (unsaved["scored"], unsaved["stopped_early"]) == ("best", True)
    assert unsaved["valid"]["logloss"] == pytest.approx(best, rel=1e-6)


def evaluated(capsys, run: str, folder, *options: str) -> dict:
    assert main(["evaluate", run, str(folder / "valid.parquet"), "--json", *options]) == 0
    printed = capsys.readouterr()
    told = "trained with early stopping: this is its best checkpoint, of step"
    assert (told in printed.err) == (not options)
    return json.loads(printed.out)


def test_a_checkpoint_that_there_is_not_is_refused_by_the_name_of_the_option(tmp_path, capsys):
    assert main(["evaluate", str(tmp_path), "rows.parquet", "--checkpoint", "bset"]) == 2
    assert (
        "--checkpoint is 'bset'; it must be 'latest', 'best' or 'auto'" in capsys.readouterr().err
    )


def test_a_grouped_auc_is_logged_watched_and_part_of_what_is_resumed(tmp_path):
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder())
    valid, rule = small_dlrm.raw_rows(60), st.EarlyStopping("gauc", patience=9)
    with pytest.raises(ConfigError, match="gauc needs group_by"):
        trainer.fit(small_dlrm.raw_rows(64), validation=valid, early_stopping=rule)
    options = {"validation": valid, "early_stopping": rule, "run": tmp_path, "progress": None}
    history = trainer.fit(small_dlrm.raw_rows(64), epochs=2, group_by="C3", **options)
    logged = [line["gauc"] for line in st.Run(tmp_path).log() if line["split"] == "valid"]
    assert history["best"]["value"] == max(logged)
    assert trainer.evaluate(valid, group_by="C3")["gauc"] == pytest.approx(max(logged))
    with pytest.raises(CheckpointError, match="group_by was 'C3' in this run and is 'C2' now"):
        loaded(tmp_path).fit(
            small_dlrm.raw_rows(64), epochs=3, resume=True, group_by="C2", **options
        )


DECIDING = {
    "early stopping": {"early_stopping": st.EarlyStopping("auc", patience=2)},
    "reduce_lr": {
        "early_stopping": st.EarlyStopping("auc"),
        "reduce_lr": st.ReduceLROnPlateau(0.5),
    },
}


@pytest.mark.parametrize("name", DECIDING)
def test_a_score_that_the_validation_does_not_have_is_refused_when_first_watched(name, tmp_path):
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder(), seed=3)
    one_class = {**small_dlrm.raw_rows(20), "label": [1] * 20}
    options = {"epochs": 5, "batch_size": 16, "progress": None, "run": tmp_path / "run"}
    with pytest.raises(DataError, match="validation: auc is not defined for these rows.*monitor"):
        trainer.fit(small_dlrm.raw_rows(100), validation=one_class, **options, **DECIDING[name])
    assert trainer.steps == EPOCH
    assert loaded(tmp_path / "run").steps == EPOCH  # what was trained is kept


def test_a_ranking_without_wanted_items_is_refused_when_first_watched():
    rows = {"user": [1] * 12, "item": [*"abcdefghijkl"]}
    schema = st.data.Schema(categories=("user", "item"))
    encoder = st.data.Encoder.fit(rows, schema=schema, min_count=1, treat_as="raw")
    model = st.models.BPR(dict(zip(encoder.columns, encoder.rows, strict=True)), dim=2)
    trainer = st.Trainer(model, st.optim.sgd(0.1), encoder=encoder, target="cpu")
    nothing = pa.table({"user": [1], "item": pa.array([None], pa.string())})
    with pytest.raises(DataError, match="hr@10 is not defined"):
        trainer.fit(
            rows,
            validation=nothing,
            progress=None,
            early_stopping=st.EarlyStopping("hr@10", patience=1),
        )


def test_a_score_that_nothing_depends_on_may_be_undefined():
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder(), seed=3)
    one_class = {**small_dlrm.raw_rows(20), "label": [1] * 20}
    rule = st.EarlyStopping("auc")
    history = fit(trainer, epochs=1, rule=rule, validation=one_class)
    assert history["best"] is None
