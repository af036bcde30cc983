# SPDX-License-Identifier: Apache-2.0
"""A run that was cut and resumed is the run that was not: weights, slots, scores and log."""

import json
import os
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain.errors import CheckpointError, ConfigError, ResourceError
from sparsetrain.training.loggers import scalars
from sparsetrain.training.run import read_log
from tests import small_dlrm
from tests.helpers import slow_except
from tests.small_dlrm import assert_same_state

ROWS = 100
BATCH = 16
STEPS = 7  # of an epoch: the last has 4 rows
OPTIMIZERS = {
    name: lambda name=name: st.optim.OPTIMIZERS[name](lr=0.05) for name in st.optim.OPTIMIZERS
}


class Killed(BaseException):
    """Stands for SIGKILL: nothing but what is on the disk stays."""


def make(**options) -> st.Trainer:
    return small_dlrm.trainer(encoder=small_dlrm.encoder(), seed=3, **options)


def loaded(folder: Path, **options) -> st.Trainer:
    return small_dlrm.share_programs(st.load(folder, **options))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("data")
    paths = {name: str(folder / f"{name}.parquet") for name in ("train", "valid")}
    for seed, (name, path) in enumerate(paths.items()):
        table = pa.table(small_dlrm.raw_rows(ROWS if name == "train" else 60, seed=seed))
        pq.write_table(table, path, row_group_size=30)
    return paths


def fit(trainer: st.Trainer, files, folder: Path, **options) -> dict:
    options = {"epochs": 3, "batch_size": BATCH, "progress": None, **options}
    run = options.pop("run", None) or st.Run(folder, every=3, log_every=2, keep=2)
    return trainer.fit(
        files["train"], validation=files["valid"], validate_every=5, run=run, **options
    )


def stop_at(trainer: st.Trainer, step: int):
    return lambda: trainer.steps == step


def kill_at(step: int):
    """Return what `progress` calls: it kills the run after so many steps."""
    from sparsetrain.training.progress import Silent

    class Killer(Silent):
        count = 0

        def advance(self, rows, loss):
            type(self).count += 1
            if self.count == step:
                raise Killed

    return Killer()


def without_times(log: list[dict]) -> list[dict]:
    return [{k: v for k, v in line.items() if k not in ("seconds", "rows_per_s")} for line in log]


@pytest.fixture(scope="module")
def straight(files, tmp_path_factory):
    """The run that nothing cuts: its final state, history and log."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    trainer = make()
    history = fit(trainer, files, folder)
    return trainer.state_dict(), history, without_times(read_log(folder))


def assert_is_straight(trainer: st.Trainer, history: dict, folder: Path, straight) -> None:
    state, whole, log = straight
    assert_same_state(trainer.state_dict(), state)
    assert_same_state(loaded(folder).state_dict(), state)
    assert without_times(read_log(folder)) == log
    for ours, theirs in zip(history["epochs"], whole["epochs"], strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    assert history["best"] == whole["best"]


# Steps: the first, amid an epoch, one before a validation, a validation, a checkpoint, the last of
# an epoch, the first of the next, the last of all.
CUTS = [1, 4, 5, 6, STEPS, STEPS + 1, 10, 2 * STEPS, 3 * STEPS]


@pytest.mark.parametrize("step", slow_except([10], CUTS))
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(files, tmp_path, straight, step):
    first = make()
    history = fit(first, files, tmp_path / "run", stop=stop_at(first, step))
    assert history["stopped"] and first.steps == step
    second = loaded(tmp_path / "run")
    assert second.steps == step
    history = fit(second, files, tmp_path / "run", resume=True)
    assert_is_straight(second, history, tmp_path / "run", straight)


@pytest.mark.parametrize("step", slow_except([20], [4, 8, 13, 20]))
def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(files, tmp_path, straight, step):
    with pytest.raises(Killed):
        fit(make(), files, tmp_path / "run", progress=kill_at(step))
    second = loaded(tmp_path / "run")
    assert 0 < second.steps <= step
    history = fit(second, files, tmp_path / "run", resume=True)
    assert_is_straight(second, history, tmp_path / "run", straight)


@pytest.mark.slow
def test_a_run_can_be_cut_after_every_step(files, tmp_path, straight):
    trainer = make()
    history = fit(trainer, files, tmp_path / "run", stop=lambda: True)
    for _ in range(3 * STEPS):
        trainer = loaded(tmp_path / "run")
        history = fit(trainer, files, tmp_path / "run", resume=True, stop=lambda: True)
    assert_is_straight(trainer, history, tmp_path / "run", straight)


@pytest.mark.parametrize("name", slow_except(["rowwise_adagrad"], sorted(st.optim.OPTIMIZERS)))
def test_every_optimizer_is_resumed_amid_an_epoch(files, tmp_path, name):
    whole = make(optimizer=OPTIMIZERS[name]())
    fit(whole, files, tmp_path / "whole", epochs=2)
    cut = make(optimizer=OPTIMIZERS[name]())
    fit(cut, files, tmp_path / "run", epochs=2, stop=stop_at(cut, 4))
    second = loaded(tmp_path / "run")
    fit(second, files, tmp_path / "run", epochs=2, resume=True)
    assert_same_state(second.state_dict(), whole.state_dict())


# Name -> kind of model, options of the trainer, optimizer.
MODES = {
    "accumulated": ("single", {"accumulate": 3}, lambda: st.optim.adagrad(0.05)),
    "half tables": ("bfloat16", {}, lambda: st.optim.adagrad(0.05)),
    "tables in int8": ("int8", {"accumulate": 2}, lambda: st.optim.rowwise_adagrad(0.05)),
    "exact Adam on half tables": (
        "bfloat16",
        {},
        lambda: st.optim.adamw(0.05, mode="exact", weight_decay=0.01),
    ),
    "exact Adam, decay and clipping": (
        "single",
        {},
        lambda: st.optim.adam(0.05, mode="exact", weight_decay=0.01, clip_norm=0.1),
    ),
    "exact momentum, warm-up": (
        "single",
        {"accumulate": 2},
        lambda: st.optim.momentum(0.05 * st.optim.warmup(6), mode="exact"),
    ),
    "dense RMSProp": ("single", {}, lambda: st.optim.rmsprop(0.01, mode="dense")),
}


QUICK = ("half tables", "tables in int8", "exact Adam, decay and clipping")


@pytest.mark.parametrize("name", slow_except(QUICK, MODES))
def test_every_way_of_updating_is_resumed_amid_an_epoch(files, tmp_path, name):
    kind, options, optimizer = MODES[name]

    def fresh() -> st.Trainer:
        made = st.Trainer(
            small_dlrm.model(kind), optimizer(), seed=3, encoder=small_dlrm.encoder(), **options
        )
        return small_dlrm.share_programs(made, kind)

    whole, cut = fresh(), fresh()
    fit(whole, files, tmp_path / "whole", epochs=2)
    fit(cut, files, tmp_path / "run", epochs=2, stop=stop_at(cut, 4))
    # A schedule is a function, so a folder may not hold it: it is given again.
    second = st.load(tmp_path / "run", optimizer=optimizer())
    small_dlrm.share_programs(second, kind)
    fit(second, files, tmp_path / "run", epochs=2, resume=True)
    assert second.accumulate == whole.accumulate
    assert_same_state(second.state_dict(), whole.state_dict())


@pytest.mark.parametrize("kind", ["table in memory", "batches of one's own", "in order"])
def test_other_sources_are_resumed_too(tmp_path, kind):
    rows = small_dlrm.raw_rows(ROWS)
    own = [small_dlrm.batch(size, seed=size) for size in (5, 9, 3, 7)]
    data = own if kind == "batches of one's own" else rows
    options = {"epochs": 2, "batch_size": 30, "progress": None, "shuffle": kind != "in order"}
    whole, cut = make(), make()
    whole.fit(data, run=tmp_path / "whole", **options)
    cut.fit(data, run=tmp_path / "run", stop=stop_at(cut, 3), **options)
    second = loaded(tmp_path / "run")
    history = second.fit(data, run=tmp_path / "run", resume=True, **options)
    assert_same_state(second.state_dict(), whole.state_dict())
    assert [e["rows"] for e in history["epochs"]] == [24, 24] if data is own else [100, 100]


def test_a_finished_run_that_is_resumed_does_nothing(files, tmp_path, straight):
    fit(make(), files, tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("run/step-*/*")}
    trainer = loaded(tmp_path / "run")
    history = fit(trainer, files, tmp_path / "run", resume=True)
    assert history["rows"] == 0
    assert_is_straight(trainer, history, tmp_path / "run", straight)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("run/step-*/*")} == before


def test_a_finished_run_can_be_given_more_epochs(files, tmp_path):
    whole, first = make(), make()
    fit(whole, files, tmp_path / "whole", epochs=3)
    fit(first, files, tmp_path / "run", epochs=1)
    second = loaded(tmp_path / "run")
    fit(second, files, tmp_path / "run", epochs=3, resume=True)
    assert_same_state(second.state_dict(), whole.state_dict())


# --- What is kept -------------------------------------------------------------------------------


def test_the_newest_checkpoints_and_the_best_stay(files, tmp_path):
    history = fit(make(), files, tmp_path / "run")
    names = sorted(p.name for p in (tmp_path / "run").glob("step-*"))
    best = f"step-{history['best']['step']:012d}"
    assert names == sorted({"step-000000000020", "step-000000000021", best}) or len(names) <= 3
    assert (tmp_path / "run" / "LATEST").read_text().strip() == "step-000000000021"
    assert (tmp_path / "run" / "BEST").read_text().strip() == best
    assert st.load(tmp_path / "run", checkpoint="best").steps == history["best"]["step"]
    assert st.load(tmp_path / "run" / best).steps == history["best"]["step"]


def test_early_stopping_ends_the_run_and_keeps_the_best(files, tmp_path):
    rule = st.EarlyStopping("auc", patience=2)
    trainer = make(optimizer=st.optim.sgd(0.0))  # nothing is learnt, so nothing gets better
    history = fit(trainer, files, tmp_path / "run", epochs=9, early_stopping=rule)
    assert history["stopped_early"] and not history["stopped"]
    assert history["best"]["step"] == trainer.steps == 5
    second = loaded(tmp_path / "run")
    assert second.steps == 10  # validated after 5, 7 and 10 steps
    again = fit(second, files, tmp_path / "run", epochs=9, early_stopping=rule, resume=True)
    assert (again["rows"], again["stopped_early"]) == (0, True)


def test_every_metric_is_in_both_logs(files, tmp_path):
    fit(make(), files, tmp_path / "run", epochs=1)
    lines = read_log(tmp_path / "run")
    assert [(line["split"], line["step"]) for line in lines] == [
        ("train", 2),
        ("train", 4),
        ("valid", 5),
        ("train", 6),
        ("train", 7),
        ("valid", 7),
    ]
    assert [line["rows"] for line in lines if line["split"] == "train"] == [32, 32, 32, 4]
    assert {"auc", "auc_bound", "logloss", "ne", "calibration"} <= lines[2].keys()
    header, *rows = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert len(rows) == len(lines)
    assert header.startswith("split,step,epoch,rows,")


def test_event_files_hold_the_log_for_tensorboard(files, tmp_path):
    pytest.importorskip("tensorboardX")
    run = st.Run(tmp_path / "run", log_every=2, tensorboard=True)
    fit(make(), files, tmp_path / "run", epochs=1, run=run)
    (path,) = (tmp_path / "run").glob("events.out.tfevents.*")
    content = path.read_bytes()
    assert b"brain.Event:2" in content
    for line in read_log(tmp_path / "run"):
        assert all(name.encode() in content for name in scalars(line))


def test_event_files_need_an_extra(files, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    run = st.Run(tmp_path / "run", tensorboard=True)
    with pytest.raises(ConfigError, match=r"pip install 'sparsetrain\[tensorboard\]'"):
        fit(make(), files, tmp_path / "run", epochs=1, run=run)


def test_the_manifest_says_what_made_the_checkpoint(files, tmp_path):
    fit(make(), files, tmp_path / "run", epochs=1)
    manifest = st.Run(tmp_path / "run").manifest()
    assert manifest["versions"].keys() >= {"apache-tvm", "numpy", "pyarrow"}
    assert manifest["target"] and len(manifest["encoder_sha256"]) == 64
    assert manifest["run"]["position"] == {"epoch": 1, "row": 0, "batch": 0}
    assert manifest["run"]["data"][0]["name"] == "train.parquet"


# --- What is refused ----------------------------------------------------------------------------


def _cut_run(files, folder: Path) -> st.Trainer:
    first = make()
    fit(first, files, folder, stop=stop_at(first, 4))
    return loaded(folder)


CHANGED = {
    "batch_size": ({"batch_size": 8}, "batch_size was 16 in this run and is 8 now"),
    "shuffle": ({"shuffle": False}, "shuffle was True in this run and is False now"),
    "early_stopping": ({"early_stopping": st.EarlyStopping("auc")}, "early_stopping was"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_argument_is_refused_by_name_unless_allowed(files, tmp_path, name):
    options, message = CHANGED[name]
    trainer = _cut_run(files, tmp_path / "run")
    before = sorted((tmp_path / "run").rglob("*"))
    with pytest.raises(CheckpointError, match=message):
        fit(trainer, files, tmp_path / "run", resume=True, **options)
    assert sorted((tmp_path / "run").rglob("*")) == before
    fit(trainer, files, tmp_path / "run", resume=True, allow_changed=[name], **options)
    assert trainer.epochs == 3


def test_changed_data_is_refused_by_name_unless_allowed(files, tmp_path):
    trainer = _cut_run(files, tmp_path / "run")
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table(small_dlrm.raw_rows(ROWS, seed=5)), other)
    changed = {**files, "train": str(other)}
    with pytest.raises(CheckpointError, match="other.parquet is not the file this run was trained"):
        fit(trainer, changed, tmp_path / "run", resume=True)
    with pytest.raises(CheckpointError, match="trained on 1 files, not 2"):
        fit(trainer, {**files, "train": [files["train"]] * 2}, tmp_path / "run", resume=True)
    fit(trainer, changed, tmp_path / "run", resume=True, allow_changed=["data"])


DECIDING = {
    "neither": {},
    "they may end it": {"early_stopping": st.EarlyStopping(patience=9)},
    "they may lower its rate": {"reduce_lr": st.ReduceLROnPlateau(patience=9)},
}


@pytest.mark.parametrize("name", DECIDING)
def test_changed_rows_to_validate_on_are_refused_where_the_run_depends_on_them(
    files, tmp_path, name
):
    rule = DECIDING[name]
    trainer = make()
    fit(trainer, files, tmp_path / "run", epochs=1, **rule)
    moved, other = tmp_path / "moved.parquet", tmp_path / "other.parquet"
    shutil.copy(files["valid"], moved)
    pq.write_table(pa.table(small_dlrm.raw_rows(60, seed=5)), other)
    trainer = loaded(tmp_path / "run")
    changed = {**files, "valid": str(other)}
    if rule:
        said = "other.parquet is not the file this run was validated on.* allow changed validation"
        with pytest.raises(CheckpointError, match=said):
            fit(trainer, changed, tmp_path / "run", epochs=2, resume=True, **rule)
    allow = {"resume": True, "allow_changed": ["validation"] * bool(rule)}
    fit(trainer, changed, tmp_path / "run", epochs=2, **rule, **allow)
    again = loaded(tmp_path / "run")
    if rule:  # what counts is what the run went on with
        with pytest.raises(CheckpointError, match="validated on, which was other.parquet"):
            fit(again, files, tmp_path / "run", epochs=3, resume=True, **rule)
    shutil.copy(other, moved)
    fit(again, {**files, "valid": moved}, tmp_path / "run", epochs=3, resume=True, **rule)


def test_rows_to_validate_on_that_are_no_files_are_others(files, tmp_path):
    rule = {"early_stopping": st.EarlyStopping(patience=9), "epochs": 2, "resume": True}
    fit(make(), files, tmp_path / "run", **{**rule, "epochs": 1, "resume": False})
    changed = {**files, "valid": pa.table(small_dlrm.raw_rows(60, seed=5))}
    with pytest.raises(CheckpointError, match="validated on files.* allow changed validation"):
        fit(loaded(tmp_path / "run"), changed, tmp_path / "run", **rule)
    fit(loaded(tmp_path / "run"), changed, tmp_path / "run", allow_changed=["validation"], **rule)


def test_data_that_was_only_moved_is_the_same(files, tmp_path, straight):
    trainer = _cut_run(files, tmp_path / "run")
    moved = tmp_path / "elsewhere with spaces é.parquet"
    moved.write_bytes(Path(files["train"]).read_bytes())
    history = fit(trainer, {**files, "train": str(moved)}, tmp_path / "run", resume=True)
    assert_is_straight(trainer, history, tmp_path / "run", straight)


def test_a_trainer_without_a_run_cannot_be_resumed(files, tmp_path):
    with pytest.raises(ConfigError, match="has no run to resume"):
        fit(make(), files, tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


def test_a_new_run_does_not_write_over_another(files, tmp_path):
    fit(make(), files, tmp_path / "run", epochs=1)
    with pytest.raises(CheckpointError, match="has a run already"):
        fit(make(), files, tmp_path / "run", epochs=1)


def test_two_runs_cannot_write_in_one_folder(files, tmp_path):
    with (
        st.Run(tmp_path / "run").writing(fresh=True),
        pytest.raises(CheckpointError, match=f"by another run .process {os.getpid()}"),
    ):
        fit(make(), files, tmp_path / "run")


def test_the_lock_of_a_dead_process_is_taken_over(files, tmp_path):
    (tmp_path / "run").mkdir()
    dead = {"process": 2**22 - 1, "host": "elsewhere", "since": "long ago"}
    (tmp_path / "run" / ".lock").write_text(json.dumps(dead))
    fit(make(), files, tmp_path / "run", epochs=1)
    holder = json.loads((tmp_path / "run" / ".lock").read_text())
    assert holder["process"] == os.getpid()


@pytest.mark.parametrize("step", [5, STEPS])
def test_a_validation_that_fails_loses_no_step(files, tmp_path, straight, monkeypatch, step):
    trainer, evaluate = make(), st.Trainer._evaluate

    def fail_once(self, *arguments, **options):
        if self.steps == step:
            raise ResourceError("no room")
        return evaluate(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(st.Trainer, "_evaluate", fail_once)
        with pytest.raises(ResourceError, match="no room"):
            fit(trainer, files, tmp_path / "run")
    resumed = loaded(tmp_path / "run")
    assert resumed.steps == step
    history = fit(resumed, files, tmp_path / "run", resume=True)
    assert_is_straight(resumed, history, tmp_path / "run", straight)


def test_a_run_that_ends_before_its_first_checkpoint_leaves_nothing(files, tmp_path):
    with pytest.raises(Killed):
        fit(make(), files, tmp_path / "run", progress=kill_at(2))
    assert list(tmp_path.iterdir()) == []


def test_the_next_run_sweeps_what_a_killed_one_left(files, tmp_path, straight):
    trainer = _cut_run(files, tmp_path / "run")
    run = tmp_path / "run"
    (run / ".step-000000000009.new-01234567").mkdir()
    (run / ".LATEST.new-01234567").write_text("step-000000000009\n")
    # A checkpoint that was written but that LATEST never named.
    (run / "step-000000000004").rename(run / "step-000000000099")
    shutil.copytree(run / "step-000000000099", run / "step-000000000004")
    history = fit(trainer, files, run, resume=True)
    assert_is_straight(trainer, history, run, straight)
    assert not [p for p in run.iterdir() if ".new-" in p.name or "99" in p.name]


def test_a_run_is_not_resumed_in_other_parts_unless_that_is_allowed(tmp_path):
    data = str(tmp_path / "train.parquet")
    pq.write_table(pa.table(small_dlrm.raw_rows(40)), data)
    options = {"epochs": 1, "batch_size": 16, "progress": None}
    first = small_dlrm.trainer(encoder=small_dlrm.encoder())
    first.fit(data, run=tmp_path / "run", **options)
    again = st.load(tmp_path / "run")
    again.accumulate = 2
    options["epochs"] = 2
    with pytest.raises(st.errors.CheckpointError, match="accumulate was 1 in this run and is 2"):
        again.fit(data, run=tmp_path / "run", resume=True, **options)
    again.fit(data, run=tmp_path / "run", resume=True, allow_changed=["accumulate"], **options)
