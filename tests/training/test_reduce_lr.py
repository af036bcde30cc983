# SPDX-License-Identifier: Apache-2.0
"""The learning rate falls where validations get no better, and stays so when a run is resumed."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain.cli import main
from sparsetrain.errors import ConfigError
from sparsetrain.training.run.state import RunState
from tests import small_dlrm
from tests.small_dlrm import assert_same_state

EPOCH = 7  # steps, of 16 rows
SCORES = [0.6, 0.5, 0.55, 0.56, 0.51, 0.4]  # with a patience of 2 the rate falls after the fourth
RULE = st.ReduceLROnPlateau(0.25, patience=2)
OPTIMIZERS = {
    "adagrad": st.optim.adagrad,
    "adam, exact": lambda lr: st.optim.adam(lr, mode="exact"),
    "adamw, decaying": lambda lr: st.optim.adamw(lr, weight_decay=0.1, mode="exact"),
    "groups": lambda lr: st.optim.sgd(lr, groups=[st.optim.ParamGroup("embeddings.*", lr=0.3)]),
}


def scripted(trainer, scores=SCORES):
    following = iter(scores)
    trainer._evaluate = lambda *_, **__: {"logloss": next(following), "auc": None, "rows": 1}
    return trainer


def make(optimizer):
    return small_dlrm.trainer(encoder=small_dlrm.encoder(), optimizer=optimizer, seed=3)


def fit(trainer, epochs=6, **options):
    rows = {"validation": small_dlrm.raw_rows(20), "batch_size": 16, "progress": None}
    return trainer.fit(small_dlrm.raw_rows(100), epochs=epochs, **rows, **options)


def rates(run):
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [line["lr"] for line in lines if line["split"] == "train"]


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "groups"])
def test_the_weights_are_those_of_a_schedule_that_falls_there(name):
    trainer = scripted(make(OPTIMIZERS[name](st.optim.constant(0.05))))
    fit(trainer, reduce_lr=RULE)
    planned = make(OPTIMIZERS[name](lambda step: 0.05 if step <= 4 * EPOCH else 0.05 * 0.25))
    fit(planned)
    assert_same_state(trainer.state_dict(), planned.state_dict())
    assert trainer.state.lr_scale == 1  # the next run begins anew


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_run_goes_on_with_its_rate(tmp_path, name):
    whole, first = (scripted(make(OPTIMIZERS[name](0.05))) for _ in range(2))
    fit(whole, reduce_lr=RULE)
    fit(first, 4, reduce_lr=RULE, run=tmp_path / "run")
    second = scripted(small_dlrm.share_programs(st.load(tmp_path / "run")), SCORES[4:])
    fit(second, reduce_lr=RULE, run=tmp_path / "run", resume=True)
    assert_same_state(second.state_dict(), whole.state_dict())
    assert rates(tmp_path / "run") == [0.05] * 4 + [0.05 * 0.25] * 2


def test_it_falls_again_while_nothing_gets_better(tmp_path, capsys):
    trainer = scripted(make(st.optim.sgd(0.1)), [0.5] * 6)
    fit(trainer, reduce_lr=st.ReduceLROnPlateau(), run=tmp_path, check_numerics=False)
    assert rates(tmp_path) == pytest.approx([0.1, 0.1, 0.01, 1e-3, 1e-4, 1e-5])


def test_a_run_of_an_older_version_has_its_whole_rate():
    values = RunState().to_dict()
    del values["lr_scale"]
    assert RunState.from_dict(values).lr_scale == 1


@pytest.mark.parametrize(
    ("make_rule", "told"),
    [
        (lambda: st.ReduceLROnPlateau(1.0), "factor is 1.0; it must be above 0 and below 1"),
        (lambda: st.ReduceLROnPlateau("0.1"), "factor is '0.1'"),
        (lambda: st.ReduceLROnPlateau(0.1, patience=0), "patience"),
        (lambda: fit(make(st.optim.sgd(0.1)), reduce_lr=0.1), "a ReduceLROnPlateau, such as"),
        (
            lambda: make(st.optim.sgd(0.1)).fit(small_dlrm.raw_rows(20), reduce_lr=RULE),
            "reduce_lr needs validation rows",
        ),
    ],
)
def test_what_cannot_be_is_refused(make_rule, told):
    with pytest.raises(ConfigError, match=told):
        make_rule()


def test_the_command_lowers_and_tells_it(tmp_path, capsys):
    for name, rows in {"a": 200, "b": 50}.items():
        pq.write_table(pa.table(small_dlrm.raw_rows(rows)), tmp_path / f"{name}.parquet")
    options = ["--lr", "0.2", "--epochs", "9", "--set", "train.reduce_lr=0.5"]
    options += ["--set", "model.dim=4", "--set", "model.bottom=8", "--set", "model.top=8"]
    files = [str(tmp_path / "a.parquet"), "--out", str(tmp_path / "run")]
    assert main(["train", *files, *options]) == 2
    assert "train.reduce_lr needs validation rows" in capsys.readouterr().err
    assert main(["train", *files, *options, "--valid", str(tmp_path / "b.parquet")]) == 0
    told = capsys.readouterr().err
    assert "no better logloss for 1 validation: the learning rate becomes 0.1" in told
