# SPDX-License-Identifier: Apache-2.0
"""What a run shows while it goes on, and the table of its epochs."""

import io
import sys
from types import ModuleType

import pytest

import sparsetrain as st
from sparsetrain.errors import ConfigError
from sparsetrain.training.progress import Lines
from tests import small_dlrm


def test_epochs_and_their_validations_are_shown_and_told_as_they_end():
    trainer, shown, told = small_dlrm.trainer(), io.StringIO(), []
    trainer.compile(scores=True)

    def note(epoch):
        told.append((epoch["valid"]["auc"], len(shown.getvalue().splitlines())))

    history = trainer.fit(
        [small_dlrm.batch(64)] * 2,
        validation=small_dlrm.batch(64, seed=1),
        epochs=2,
        progress=Lines(shown),
        on_epoch=note,
    )
    lines = shown.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "epoch 1 of 2",
        "epoch 1 is over, step 2",
        "epoch 2 of 2",
        "epoch 2 is over, step 4",
    ]
    assert lines[1].split(": ")[1].startswith("valid auc 0.") and "logloss 0." in lines[1]
    assert told == [(epoch["valid"]["auc"], 2 * n) for n, epoch in enumerate(history["epochs"], 1)]


@pytest.mark.parametrize("kept", [True, False])
def test_one_line_says_that_a_model_is_compiled(kept, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSETRAIN_CACHE", str(tmp_path / "programs") if kept else "")
    batch, said = small_dlrm.batch(4), []
    for _ in range(2):
        shown, model = io.StringIO(), st.models.LR(rows=small_dlrm.ROWS, num_dense=13)
        trainer = st.Trainer(model, st.optim.sgd(0.1))
        trainer.fit([batch], validation=batch, progress=Lines(shown))
        said.append(shown.getvalue().splitlines()[:-2])
    once = " (once per machine and model)" if kept else ""
    assert said == [[f"compiling LR{once}"], [] if kept else ["compiling LR"]]


def test_a_history_is_a_table_of_its_epochs():
    history = small_dlrm.trainer().fit([small_dlrm.batch(64)], epochs=2, progress=None)
    assert history.frame.columns.tolist() == ["rows", "seconds", "loss"]
    assert history.frame["loss"].tolist() == [epoch["loss"] for epoch in history["epochs"]]
    assert history.frame.index.tolist() == [1, 2] and "<table" in history._repr_html_()
    assert str(history) == str(history.frame) and isinstance(history, dict)


@pytest.mark.parametrize("name", ["on_epoch", "on_log"])
def test_what_is_no_function_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} is 5; give a function of a dict"):
        small_dlrm.trainer().fit([small_dlrm.batch(8)], **{name: 5})


def test_a_logger_gets_the_lines_of_the_log_with_a_run_or_without(tmp_path):
    batches, held_out = [small_dlrm.batch(8)] * 3, small_dlrm.batch(16, seed=1)
    for run in (None, st.Run(tmp_path / "run", log_every=2)):
        told: list[dict] = []
        small_dlrm.trainer().fit(
            batches, validation=held_out, run=run, on_log=told.append, progress=None
        )
        steps = [(line["split"], line["step"]) for line in told]
        assert steps == [("train", 2)] * (run is not None) + [("train", 3), ("valid", 3)]
        assert run is None or run.log() == told


class Fake(ModuleType):
    """MLflow and wandb, as far as loggers use them."""

    def __init__(self):
        super().__init__("fake")
        self.calls = []

    def init(self, **options):
        self.calls.append(options)
        return self

    def log(self, values):
        self.calls.append(values)

    def log_metrics(self, values, step, run_id):
        self.calls.append((values, step, run_id))


LINE = {"split": "valid", "step": 3, "epoch": 0, "ndcg@10": 0.25, "auc": None}


def test_lines_go_to_mlflow_and_to_wandb(monkeypatch):
    mlflow, wandb = Fake(), Fake()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    st.loggers.MLflow("a1")(LINE)
    st.loggers.WandB(project="clicks")(LINE)
    assert mlflow.calls == [({"valid/epoch": 0, "valid/ndcg_10": 0.25}, 3, "a1")]
    assert wandb.calls == [
        {"project": "clicks"},
        {"step": 3, "valid/epoch": 0, "valid/ndcg@10": 0.25},
    ]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"wandb is not installed: pip install 'sparset.*wandb"):
        st.loggers.WandB()


def test_objects_of_arrays_say_how_they_are_made():
    import numpy as np

    with pytest.raises(st.errors.DataError, match="RowSparse.from_numpy"):
        st.RowSparse(np.array([1]), np.ones((1, 2), "float32"), 3)
    with pytest.raises(ConfigError, match=r"tables is a list; give model.tables\(\)"):
        st.optim.sgd(0.1).init({}, tables=["a"])


def test_a_history_draws_its_losses_and_scores_by_epoch():
    batch = small_dlrm.batch(64)
    history = small_dlrm.trainer().fit([batch], validation=batch, epochs=3, progress=None)
    plot = history.plot()
    assert repr(plot) == "<Plot: loss, valid auc, valid logloss>"
    assert plot.scores["loss"] == [(n, e["loss"]) for n, e in enumerate(history["epochs"], 1)]
    html = plot._repr_html_()
    assert html.count("<svg") == 3 and html.count("<circle") == 9
    assert [*history.plot("seconds").scores] == ["seconds"]
    with pytest.raises(ConfigError, match="no score 'valid acu'; did you mean 'valid auc'"):
        history.plot("valid acu")
