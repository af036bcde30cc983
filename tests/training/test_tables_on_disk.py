# SPDX-License-Identifier: Apache-2.0
"""Tables on disk are tables in memory, to the bit: steps, scores, checkpoints, kills, growth."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain.errors import ConfigError, ResourceError
from sparsetrain.tables import on_disk
from sparsetrain.training.on_disk import DiskTables
from tests import small_dlrm
from tests.helpers import slow_except
from tests.small_dlrm import assert_same_state

OPTIMIZERS = {
    "sgd": lambda: st.optim.sgd(0.05),
    "adagrad": lambda: st.optim.adagrad(0.05, initial=0.1),
    "rowwise_adagrad": lambda: st.optim.rowwise_adagrad(0.05),
    "adam": lambda: st.optim.adam(0.01),
    "ftrl": lambda: st.optim.ftrl(0.05),
}
CACHE = 40  # of 77 rows; a batch of 16 reads at most 39
pytestmark = pytest.mark.cpu("tables on disk are for a CPU")


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch):
    """Logs that are full after a few rows."""
    monkeypatch.setattr(on_disk, "_LEAST", 8)


@pytest.fixture
def place(tmp_path) -> st.tables.OnDisk:
    return st.tables.OnDisk(tmp_path / "tables", cache_rows=CACHE)


def trainer(optimizer: str = "rowwise_adagrad", **options) -> st.Trainer:
    return st.Trainer(small_dlrm.model(), OPTIMIZERS[optimizer](), seed=3, **options)


def encoding(**options) -> st.Trainer:
    return trainer(encoder=small_dlrm.encoder(), **options)


def fit(trainer: st.Trainer, **options) -> dict:
    return trainer.fit(small_dlrm.raw_rows(100), batch_size=12, progress=None, **options)


@pytest.mark.parametrize("optimizer", slow_except(["rowwise_adagrad", "adam"], OPTIMIZERS))
def test_steps_and_scores_have_the_bits_of_tables_in_memory(place, optimizer):
    memory, disk = trainer(optimizer), trainer(optimizer, tables=place)
    assert_same_state(disk.state_dict(), memory.state_dict())
    for seed in range(30):
        batch = small_dlrm.batch(16, seed)
        assert float(disk.step(batch)) == float(memory.step(batch))
        if seed % 4 == 0:
            other = [small_dlrm.batch(16, 100 + seed)]
            assert disk.predict(other).tobytes() == memory.predict(other).tobytes()
        if seed % 10 == 0:
            assert_same_state(disk.state_dict(), memory.state_dict())
    assert_same_state(disk.state_dict(), memory.state_dict())


@pytest.mark.parametrize("kind", ["sum", "weighted"])
def test_bags_do_too(place, kind):
    def make(**options):
        return st.Trainer(small_dlrm.model(kind), OPTIMIZERS["adagrad"](), **options)

    memory, disk = make(), make(tables=place)
    for seed in range(20):
        batch = small_dlrm.batch(6, seed, kind)
        assert float(disk.step(batch)) == float(memory.step(batch))
    assert_same_state(disk.state_dict(), memory.state_dict())


def test_a_cache_that_holds_all_rows_is_as_large_as_the_table(tmp_path):
    disk = trainer(tables=st.tables.OnDisk(tmp_path, cache_rows=10**6))
    (storage,) = disk.model.tables()
    assert tuple(disk.params.weights[storage].shape) == (77, 8)
    assert (disk.table_bytes, disk._bytes) == (trainer().table_bytes, trainer()._bytes)


def table_of(rows: int, cache: int, folder: Path) -> on_disk.DiskTable:
    part = SimpleNamespace(
        names=("t",), rule=SimpleNamespace(has_last=False, dense=False, catches_up=False)
    )
    weight, slot = (st.runtime.zeros(shape, "float32") for shape in ((cache, 3), (cache,)))
    table = on_disk.Table("t", weight, {"sum": slot}, [part], {"t": slice(0, rows)})
    return on_disk.DiskTable(table, folder)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_random_reads_and_updates_leave_the_rows_that_an_array_has(tmp_path, dtype):
    rng = np.random.default_rng(0)
    table = table_of(500, 60, tmp_path)
    expected = rng.normal(size=(500, 4)).astype("f4")
    weight, slots = table.stored(writing=True)
    weight[...], slots["sum"][...] = expected[:, :3], expected[:, 3]
    views = [st.runtime.as_numpy(t)[...] for t in (table.weight, table.slots["sum"])]
    writable = [st.runtime.as_numpy(table.weight, writable=True)]
    for number in range(300):
        ids = (rng.zipf(1.3, 40) % 500).astype(dtype)
        at = ids.copy()
        table.catch_up(at)
        np.testing.assert_array_equal(views[0][at], expected[ids, :3])
        np.testing.assert_array_equal(views[1][at], expected[ids, 3])
        if number % 3:
            writable[0][at] += 1
            expected[np.unique(ids), :3] += 1
            table.note_step({}, ())
        if number % 50 == 0:
            weight, slots = table.stored(writing=number % 100 == 0)
            np.testing.assert_array_equal(weight, expected[:, :3])
            np.testing.assert_array_equal(slots["sum"], expected[:, 3])


def test_rows_that_are_only_read_are_not_written(place):
    disk = trainer(tables=place)
    (table,) = disk.params.lagging
    disk.predict([small_dlrm.batch(16)])
    assert not table._map.dirty.any()
    disk.step(small_dlrm.batch(16))
    assert table._map.dirty.any()


# --- Checkpoints ---------------------------------------------------------------------------------


def test_a_checkpoint_is_that_of_tables_in_memory(place, tmp_path):
    memory, disk = trainer(), trainer(tables=place)
    for seed in range(6):
        memory.step(small_dlrm.batch(16, seed))
        disk.step(small_dlrm.batch(16, seed))
    memory.save(tmp_path / "memory")
    disk.save(tmp_path / "disk")
    for file in (tmp_path / "memory").glob("*.npy"):
        assert file.read_bytes() == (tmp_path / "disk" / file.name).read_bytes()
    back = st.load(tmp_path / "memory", tables=place)
    whole = st.load(tmp_path / "disk")
    for seed in range(6, 12):
        batch = small_dlrm.batch(16, seed)
        assert float(back.step(batch)) == float(whole.step(batch))
    assert_same_state(back.state_dict(), whole.state_dict())
    assert_same_state(whole.quantized().state_dict(), back.quantized().state_dict())


class Killed(BaseException):
    """Stands for SIGKILL: nothing but what is on the disk stays."""


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(place, tmp_path):
    memory = encoding()
    fit(memory, epochs=3)
    disk = encoding(tables=place)

    def kill():
        if disk.steps == 11:
            raise Killed

    with pytest.raises(Killed):
        fit(disk, epochs=3, run=st.Run(tmp_path / "run", every=4), stop=kill)
    disk = st.load(tmp_path / "run", tables=place)
    assert disk.steps == 9
    fit(disk, epochs=3, run=st.Run(tmp_path / "run", every=4), resume=True)
    assert_same_state(disk.state_dict(), memory.state_dict())


JOB = """
import sys
import sparsetrain as st
from tests.training import test_tables_on_disk as tests

run, folder = sys.argv[1:]
tests.on_disk._LEAST = 8
place = st.tables.OnDisk(folder, cache_rows=tests.CACHE)
found = st.Run(run).latest
trainer = st.load(run, tables=place) if found else tests.encoding(tables=place)
print("ready", flush=True)
tests.fit(trainer, epochs=200, run=st.Run(run, every=7), resume=bool(found))
print("done", flush=True)
"""


@pytest.mark.slow
def test_twenty_kills_lose_nothing_that_a_checkpoint_had(tmp_path):
    rng, steps, kills = np.random.default_rng(0), 0, 0
    run, folder = tmp_path / "run", tmp_path / "tables"
    while True:
        job = [sys.executable, "-c", JOB, str(run), str(folder)]
        with subprocess.Popen(job, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            if kills == 20:
                assert process.stdout.readline() == "done\n"
                break
            try:
                process.wait(rng.uniform(0.05, 0.6))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        kills += 1
        assert process.wait() == -signal.SIGKILL and os.listdir(folder) == []
        if st.Run(run).latest:
            assert st.load(run).steps >= steps
            steps = st.load(run).steps
    memory = encoding()
    fit(memory, epochs=200)
    assert_same_state(st.load(run).state_dict(), memory.state_dict())


def test_newer_data_make_it_grow_on_disk(place):
    memory, disk = encoding(), encoding(tables=place)
    rows = {**small_dlrm.raw_rows(100, seed=1), "C1": [f"{9000 + n:08x}" for n in range(100)]}
    for each in (memory, disk):
        fit(each)
    memory, disk = (t.extended(t.encoder.extended(rows, min_count=1)) for t in (memory, disk))
    for each in (memory, disk):
        each.fit(rows, batch_size=12, progress=None)
    assert disk.params.lagging and disk.encoder.rows[0] > 50
    assert_same_state(disk.state_dict(), memory.state_dict())


# --- Bad input -----------------------------------------------------------------------------------


def test_the_file_has_no_name_and_goes_with_the_trainer(place):
    disk = trainer(tables=place)
    disk.step(small_dlrm.batch(16))
    assert os.listdir(place.folder) == []


def test_a_cache_smaller_than_a_batch_is_named_and_nothing_is_lost(tmp_path):
    memory = trainer()
    disk = trainer(tables=st.tables.OnDisk(tmp_path, cache_rows=25))
    for each in (memory, disk):
        each.step(small_dlrm.batch(4, 0))
    with pytest.raises(ResourceError, match=r"than the 25 of the cache: raise cache_rows"):
        disk.step(small_dlrm.batch(30, 1))
    for each in (memory, disk):
        each.step(small_dlrm.batch(4, 2))
    assert disk.steps == 2
    assert_same_state(disk.state_dict(), memory.state_dict())


def test_a_full_disk_is_named_before_the_first_step(place, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ResourceError, match=r"needs 0\.00 GB in .*: name a folder"):
        trainer(tables=place)


def test_a_disk_that_fails_is_named(place, monkeypatch):
    disk = trainer(tables=place)
    (table,) = disk.params.lagging
    os.ftruncate(table._file._descriptor, 0)
    for act in (lambda: disk.step(small_dlrm.batch(16)), disk.state_dict):
        with pytest.raises(ResourceError, match="cannot be read in .*; go on from the last check"):
            act()


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no file can be made in .*file"):
        trainer(tables=st.tables.OnDisk(tmp_path / "file", cache_rows=CACHE))


class ReadsAllRows(st.models.ClickModel):
    """Its logit depends on rows that no batch names."""

    def __init__(self, rows, dim=4, num_dense=13, **rest):
        super().__init__(rows, dim, num_dense, **rest)

    def forward(self, dense, embedded):
        of_batch = nn.op.sum(embedded, axis=[1, 2])  # (B,)
        of_all = nn.op.sum(self.embeddings.storage(4).weight, axis=[0, 1], keepdims=True)
        return nn.op.reshape(of_batch, (dense.shape[0], 1)) * of_all  # (B, 1)


GROUP = st.optim.ParamGroup("embeddings.C1.*", lr=0.0)
REFUSED = {
    "exact mode": ({"optimizer": st.optim.adam(0.1, mode="exact")}, "take mode 'lazy'"),
    "dense mode": ({"optimizer": st.optim.adam(0.1, mode="dense")}, "take mode 'lazy'"),
    "groups": ({"optimizer": st.optim.sgd(0.1, groups=[GROUP])}, "give them the same"),
    "a norm": ({"optimizer": st.optim.sgd(0.1, clip_norm=1.0)}, "use clip_value"),
    "half tables": ({"model": small_dlrm.model("bfloat16")}, "must be float32"),
    "items": ({"model": st.models.SASRec({"item": 30})}, "click models"),
    "a whole table": ({"model": ReadsAllRows([5, 3])}, "only by ids of the batch"),
    "parts": ({"accumulate": 2}, "remove accumulate"),
    "a path": ({"tables": "folder"}, r"st\.tables\.OnDisk"),
}


def test_ranks_are_refused(place):
    with pytest.raises(ConfigError, match="remove parallel"):
        DiskTables(place, small_dlrm.model(), st.optim.sgd(0.1), trainer().target, 1, alone=False)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_have_other_bits_is_refused_in_one_line(place, name):
    options, message = REFUSED[name]
    given = {"model": small_dlrm.model(), "optimizer": st.optim.sgd(0.1), "tables": place}
    with pytest.raises(ConfigError, match=message) as caught:
        st.Trainer(**{**given, **options})
    assert "\n" not in str(caught.value)


def test_an_optimizer_of_another_mode_is_refused_later_too(place):
    disk = trainer("adam", tables=place)
    disk.optimizer = st.optim.adam(0.01, mode="dense")
    with pytest.raises(ConfigError, match="take mode 'lazy'"):
        disk.step(small_dlrm.batch(16))


@pytest.mark.parametrize("rows", [0, 2**30, 1.5])
def test_an_impossible_cache_is_refused(rows):
    with pytest.raises(ConfigError, match="OnDisk: cache_rows"):
        st.tables.OnDisk("tables", cache_rows=rows)
