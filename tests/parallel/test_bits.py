# SPDX-License-Identifier: Apache-2.0
"""The same bits on any number of ranks: losses, and every array of what is saved.

Ranks are threads here; `test_mpi` has processes.
"""

import threading

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.parallel.group import Group
from sparsetrain.parallel.sharded_step import ShardedStep
from sparsetrain.parallel.traffic import TrafficRecorder
from tests.helpers import read_checkpoint, slow_except
from tests.parallel.threads import all_of, run_ranks
from tests.small_dlrm import assert_same_state, bags

TABLES = [3, 40, 2000, 300]
ROWS = (37, 37, 3, 37)  # of the batches: 37 are not a multiple of 4 parts, of 3 one is empty
LR = st.optim.warmup(3) * 0.05
# Name -> what differs from a model of single ids, by Adagrad.
CASES = {
    "adagrad": {},
    "clipped, decayed, grouped, with dropout and weights of rows": {
        "model": {"dropout": 0.3, "row_weights": True},
        "optimizer": st.optim.adagrad(
            0.05,
            weight_decay=1e-3,
            clip_norm=0.05,
            groups=[
                st.optim.ParamGroup("embeddings.C2.*", lr=0.0),
                st.optim.ParamGroup("embeddings.C3.*", mode="exact", scale=2.0),
            ],
        ),
    },
    "exact Adam, capped, and a scale that falls": {
        "optimizer": st.optim.adam(LR, mode="exact", max_replayed_steps=2),
        "loss_scale": st.precision.LossScale(initial=1e37, every=2, most=1e37),
    },
    "weighted bags, row-wise Adagrad": {
        "model": {"pooling": "sum", "weighted": True},
        "optimizer": st.optim.rowwise_adagrad(0.05),
    },
    "mean bags of a shared table, dense Adam": {
        "model": {
            "pooling": "mean",
            "rows": [40, 40, 2000, 300],
            "share_embedding": {"C1": "C2"},
        },
        "optimizer": st.optim.adam(LR, mode="dense"),
    },
    "tables in bfloat16, two rules": {
        "model": {"table_dtype": "bfloat16"},
        "optimizer": st.optim.adagrad(0.05, groups=[st.optim.ParamGroup("*.C2.*", scale=2.0)]),
    },
    "bags of tables in int8, row-wise Adagrad": {
        "model": {"table_dtype": "int8", "pooling": "sum"},
        "optimizer": st.optim.rowwise_adagrad(0.05),
    },
    "batch norm, SGD": {
        "class": st.models.DCNv2,
        "model": {"batch_norm": True},
        "optimizer": st.optim.sgd(0.05),
    },
    "FTRL and two labels": {
        "class": st.models.MMoE,
        "model": {"labels": {"click": "binary", "seconds": "real"}},
        "optimizer": st.optim.ftrl(0.05),
    },
    "numbers in bins": {
        "model": {"numbers": "binned", "number_bins": [[-0.5, 0.5]] * 3},
        "optimizer": st.optim.adam(LR),
    },
    "lazy Adam, a history": {"class": st.models.DIN, "optimizer": st.optim.adam(LR)},
    "ratings by two tables a column": {
        "class": st.models.MatrixFactorization,
        "optimizer": st.optim.adam(LR, mode="exact"),
    },
}


@pytest.fixture(autouse=True, scope="module")
def one_program():
    """Ranks share what they would compile alike."""
    made, lock, cut = {}, threading.Lock(), ShardedStep._cut.func

    def shared(step):
        with lock:
            key = type(step._trainer.model), repr(step._trainer.model.config())
            return made.setdefault(key, None) or made.update({key: cut(step)}) or made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardedStep, "_cut", property(shared))
        yield


OWN = {
    st.models.DLRM: {"rows": TABLES, "dim": 8, "num_dense": 3, "bottom": (8,), "top": (8,)},
    st.models.DCNv2: {"rows": TABLES, "dim": 8, "num_dense": 3, "hidden": (8,)},
    st.models.MMoE: {"rows": TABLES, "dim": 8, "num_dense": 3, "expert": (8,), "tower": (4,)},
    st.models.DIN: {
        "rows": {"user": 40, "item": 2000, "history": 2000, "shop": 300},
        "dim": 8,
        "attention": (8,),
        "top": (8,),
        "length": 3,
        "dropout": 0.3,
    },
    st.models.MatrixFactorization: {"rows": {"user": 2000, "item": 300}, "dim": 8},
}


def model(cls=st.models.DLRM, **changes):
    return cls(**{**OWN[cls], **changes})


def batches(spike=0.0, cls=st.models.DLRM, times=1, **changes):
    """Ids by falling count, as an encoder numbers them; the second's last row has a spike."""
    if isinstance(OWN[cls]["rows"], dict):
        yield from columns_of(cls, times)
        return
    rng = np.random.default_rng(0)
    norm = "batch_norm" in changes  # of each of 4 parts, and one row has no variance
    for number, size in enumerate([rows for rows in ROWS * times if rows >= 8 or not norm]):
        ids = np.stack([np.minimum(rng.zipf(1.3, size) - 1, rows - 1) for rows in TABLES], axis=1)
        if "pooling" in changes:
            kind = "weighted" if "weighted" in changes else "sum"
            columns = zip(ids.T, TABLES, strict=True)
            ids = [bags(column, rows, rng, kind) for column, rows in columns]
        weights = rng.random(size) if "row_weights" in changes else None
        dense = rng.normal(size=(size, 3))
        dense[-1, 0] += spike * (number == 1)
        labels = rng.integers(0, 2, size)
        if "labels" in changes:
            labels = np.stack([labels, rng.normal(size=size)], axis=1)
        yield st.Batch(dense, ids, labels, weights)


def columns_of(cls, times):
    """Batches of a model of named columns; half of their rows have no history."""
    rng, rows = np.random.default_rng(0), OWN[cls]["rows"]
    for size in ROWS * times:
        features = []
        for name in model(cls).features:
            lengths = np.ones(size, int)
            if name == "history":
                lengths = np.where(np.arange(size) < size // 2, 0, rng.integers(0, 5, size))
            ends = np.concatenate([[0], np.cumsum(lengths)])
            ids = np.minimum(rng.zipf(1.3, ends[-1]) - 1, rows[name] - 1)
            features.append(st.data.Ragged(ids, ends))
        yield st.Batch(np.empty((size, 0)), features, rng.integers(0, 2, size))


def trained(folder, case, parallel=None, times=1):
    """Losses, and the arrays of the checkpoint that all ranks write."""
    changes = {"cls": case.get("class", st.models.DLRM), **case.get("model", {})}
    optimizer = case.get("optimizer", st.optim.adagrad(0.05))
    scale = case.get("loss_scale")
    trainer = st.Trainer(model(**changes), optimizer, seed=3, loss_scale=scale, parallel=parallel)
    spike = 1e4 * (scale is not None)
    losses = [float(trainer.step(batch)) for batch in batches(spike, times=times, **changes)]
    trainer.params.flush()  # as ranks do, when they save
    trainer.save(folder)
    return losses


def on_ranks(folder, case, size, shard, times):
    losses = all_of(run_ranks(size, lambda c: trained(folder, case, Group(c, shard, 4), times)))
    assert all(each == losses[0] for each in losses)
    return losses[0], *read_checkpoint(folder)


def same(one, other):
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    for name, array in one[1].items():
        assert array.tobytes() == other[1][name].tobytes(), name
    assert one[2]["loss_scale"] == other[2]["loss_scale"]


QUICK = [*CASES][1]


@pytest.mark.parametrize(
    "name, times", slow_except([(QUICK, 1)], [(QUICK, 1), *((name, 50) for name in CASES)])
)
def test_bits_do_not_depend_on_ranks_or_on_where_tables_lie(tmp_path, name, times):
    first = on_ranks(tmp_path / "one", CASES[name], 1, "table", times)
    for size, shard in ((2, "row"), (4, "auto")):
        same(on_ranks(tmp_path / f"{size} {shard}", CASES[name], size, shard, times), first)
    assert "scale" not in name or first[2]["loss_scale"]["overflows"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [QUICK, *(name for name in CASES if "tables in" in name)])
def test_one_rank_and_one_part_is_a_trainer_of_one_process(tmp_path, name):
    found = []
    for parallel in (None, st.parallel.local(parts=1)):
        folder = tmp_path / str(parallel is None)
        found.append((trained(folder, CASES[name], parallel), *read_checkpoint(folder)))
    same(*found)


@pytest.mark.parametrize("shard", ["row", "auto"])
def test_every_rank_makes_the_rows_of_int8_of_the_whole_model(tmp_path, shard):
    def work(comm):
        optimizer = st.optim.adam(0.05, mode="exact")
        trainer = st.Trainer(model(), optimizer, seed=3, parallel=Group(comm, shard, 2))
        for batch in batches():
            trainer.step(batch)
        trainer.save(tmp_path / "saved")
        return trainer.quantized()

    made = all_of(run_ranks(2, work))
    wanted = st.load(tmp_path / "saved").quantized()
    for each in made:
        assert_same_state(each.state_dict(), wanted.state_dict())
    rows = next(iter(batches()))
    np.testing.assert_array_equal(made[1].predict(rows), wanted.predict(rows))


def test_bytes_that_are_sent_follow_from_unique_rows_and_not_from_parts():
    ranks, width = 2, 8

    def work(comm, parts):
        trainer = st.Trainer(model(), st.optim.adagrad(0.05), parallel=Group(comm, "row", parts))
        trainer.step_hook, steps = TrafficRecorder(comm), []
        for batch in batches():
            trainer.step(batch)
            steps.append({what: sums[-1] for what, sums in comm.traffic.items()})
        dense = sum(
            p.numpy().size for n, p in trainer.params.items() if n not in trainer.model.tables()
        )
        return steps, dense

    found = all_of(run_ranks(ranks, lambda c: work(c, 2)))
    assert found == all_of(run_ranks(ranks, lambda c: work(c, 8)))
    for number, batch in enumerate(batches()):
        halves = np.array_split(batch.ids, [len(batch) // 2])
        unique = sum(len(np.unique(column)) for half in halves for column in half.T)
        of_rows = sum(
            steps[number].get(what, 0)
            for steps, _ in found
            for what in ("rows", "gradients of rows")
        )
        assert 0 < of_rows <= 2 * unique * (4 * width + 4)
        for steps, dense in found:
            assert steps[number]["dense sums"] <= 2 * 4 * dense * (ranks - 1) / ranks + 1024


@pytest.mark.slow
def test_any_number_of_ranks_shares_out_three_parts_or_six(tmp_path):
    case = CASES["adagrad"]

    def run(size):
        folder = tmp_path / str(size)
        all_of(run_ranks(size, lambda c: trained(folder, case, Group(c, "auto", 6))))
        return [], *read_checkpoint(folder)

    same(run(3), run(6))
