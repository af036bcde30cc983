# SPDX-License-Identifier: Apache-2.0
"""What one rank meets ends all ranks, which say whose it was; what cannot work is refused."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.errors import ConfigError, DataError, NumericalError, ParallelError
from sparsetrain.parallel import group, mpi_comm, shards
from sparsetrain.parallel.comm import Comm
from sparsetrain.parallel.group import Group
from tests.parallel.test_bits import batches, model
from tests.parallel.test_runs import make_clicks
from tests.parallel.threads import run_ranks

ADAGRAD = st.optim.adagrad(0.05)


def test_an_error_of_one_rank_is_raised_on_all_and_names_it():
    def work(comm):
        trainer = st.Trainer(model(), ADAGRAD, parallel=Group(comm, "row", 4))
        with comm.guard():
            for number, batch in enumerate(batches()):
                if number == 2 and comm.rank == 1:
                    raise DataError("row 7 of a file is bad")
                trainer.step(batch)

    first, second = run_ranks(2, work)
    assert isinstance(second, DataError) and isinstance(first, ParallelError)
    assert str(first) == "rank 1 of 2 (host1): DataError: row 7 of a file is bad"


def test_a_rank_that_is_silent_is_named_after_the_deadline():
    def work(comm):
        if comm.rank == 0:
            comm.any(True)

    assert str(run_ranks(2, work, deadline=0.1)[0]) == (
        "rank 0 of 2 (host0): no answer from rank 1 of 2 (host1) for 0.1 s"
    )


def test_the_deadline_of_the_last_call_counts(monkeypatch):
    class Alone(Comm):
        def __init__(self, deadline):
            self.deadline = deadline

    monkeypatch.setattr(group, "_joined", {})
    monkeypatch.setattr(group, "MpiComm", Alone)
    first, second = (st.parallel.mpi(deadline=seconds).comm for seconds in (9, 5))
    assert first is second and second.deadline == 5


def test_a_number_that_is_not_finite_stops_all_ranks_before_they_write():
    bad = [*batches(spike=1e4)][1]  # in the last row

    def work(comm):
        group = Group(comm, "row", 2)
        trainer = st.Trainer(model(), ADAGRAD, loss_scale=1e37, seed=3, parallel=group)
        before = [np.copy(param.numpy()) for param in trainer.params.values()]
        with pytest.raises(NumericalError, match="nothing was updated"):
            trainer.step(bad)
        after = [param.numpy() for param in trainer.params.values()]
        return all(map(np.array_equal, before, after))

    assert run_ranks(2, work) == [True, True]


class Own(st.models.DLRM):
    def initialize(self, seed, *, fill=True):
        params = super().initialize(seed, fill=fill)
        for name in self.tables():
            st.runtime.as_numpy(params[name], writable=True)[...] = 0.5
        return params


OPTIONS = {"rows": [9, 5], "dim": 4, "num_dense": 3, "bottom": (4,), "top": (4,)}


def test_what_is_not_there_is_refused_by_name():
    refused = {
        "Own overrides initialize": lambda: Own(**OPTIONS),
    }
    for said, make in refused.items():
        with pytest.raises(ConfigError, match=said):
            st.Trainer(make(), ADAGRAD, parallel=st.parallel.local())
    trainer = st.Trainer(st.models.DLRM(**OPTIONS), ADAGRAD, parallel=st.parallel.local(2))
    for name in ("state_dict", "profile", "first_nonfinite"):
        with pytest.raises(ConfigError, match="load it in one process"):
            getattr(trainer, name)()
    with pytest.raises(ConfigError, match="check_numerics works in one process only"):
        trainer.fit([], check_numerics=True)
    with pytest.raises(ConfigError, match="drop accumulate"):
        st.Trainer(st.models.DLRM(**OPTIONS), ADAGRAD, accumulate=2, parallel=st.parallel.local(2))


@pytest.mark.parametrize(
    ("dtype", "optimizer", "said"),
    [
        ("bfloat16", st.optim.adam, "float32 tables, or train in one process"),
        ("float16", st.optim.adam, "float32 tables, or train in one process"),
        ("int8", st.optim.rowwise_adagrad, "leave out mode and update, or take float32 tables"),
    ],
)
def test_rounded_tables_with_rows_that_lag_are_refused_in_one_line(dtype, optimizer, said):
    def work(comm):
        made = optimizer(0.01, mode="exact", update="sparse", weight_decay=0.01)
        st.Trainer(model(table_dtype=dtype), made, parallel=Group(comm, "row", 2))

    for error in run_ranks(2, work):
        assert isinstance(error, ConfigError)
        assert said in str(error) and dtype in str(error) and "\n" not in str(error)


class Crossed(st.models.MatrixFactorization):
    def forward(self, user, item):
        return super().forward(user, item) + st.models.model.nn.op.sum(
            self.item(user), axis=-1, keepdims=True
        )


def test_rows_that_come_in_another_order_from_each_table_are_refused():
    def work(comm):
        crossed, group = Crossed({"user": 9, "item": 5}), Group(comm, "table", 2)
        st.Trainer(crossed, ADAGRAD, parallel=group).compile()

    said = "'user' is looked up in user.weight and in item.weight, which are sharded differently"
    assert any(said in str(error) for error in run_ranks(2, work))


def test_ranks_that_would_compute_something_else_are_refused():
    def work(comm):
        return st.Trainer(model(), ADAGRAD, seed=comm.rank, parallel=Group(comm, "auto", None))

    errors = run_ranks(2, work)
    assert any("the seed 0, but rank 1 has 1: give all ranks the same" in str(e) for e in errors)


def _other_clicks(column):
    clicks = make_clicks()
    return clicks.assign(**{column: clicks[column].to_numpy()[::-1]})


# What a rank is given -> what the error of all ranks says.
OTHERS = {
    "data in memory": (lambda rank, _: {"train": _given(rank, "label")}, "has the data"),
    "the last row of a frame": (
        lambda rank, _: {"train": _last_row("label") if rank else make_clicks()},
        "has the data 'rows of checksum",
    ),
    "data in files": (lambda rank, at: {"train": _file(at, rank, "label")}, "has the data"),
    "other batches": (lambda rank, _: {"train": _batches(rank)}, "different values on rank 1"),
    "rows to validate on": (
        lambda rank, _: {"validation": _given(rank, "C1")},
        "different values on",
    ),
    "files to validate on": (
        lambda rank, at: {"validation": _file(at, rank, "C1")},
        "different values",
    ),
    "validation": (lambda rank, _: {"validation": _given(0, "") if rank else None}, "validation"),
    "validate_every": (
        lambda rank, _: {"validation": _given(0, ""), "validate_every": 2 + rank},
        "has the validate_every",
    ),
    "early_stopping": (
        lambda rank, _: {
            "validation": _given(0, ""),
            "early_stopping": st.EarlyStopping(patience=1 + rank),
        },
        "has the early_stopping 'EarlyStopping(",
    ),
    "shuffle": (lambda rank, _: {"shuffle": rank == 0}, "has the shuffle"),
    "every": (
        lambda rank, at: {"run": st.Run(at / "run", every=2 + rank)},
        "has the checkpoints every",
    ),
    "run": (lambda rank, at: {"run": at / "run" if rank else None}, "has the argument run"),
    "stop": (lambda rank, _: {"stop": (lambda: False) if rank else None}, "has the argument stop"),
    "encoder": (lambda rank, _: {"encoder": _encoder(rank)}, "has the encoder"),
}


def _last_row(column):
    clicks = make_clicks()
    clicks.loc[len(clicks) - 1, column] = 1 - clicks[column].iloc[-1]
    return clicks


def _given(rank, column):
    return _other_clicks(column) if rank else make_clicks()


def _file(at, rank, column):
    path = at / f"{rank}.parquet"
    _given(rank, column).to_parquet(path)
    return str(path)


def _batches(rank):
    return [_encoder(0).encode(_given(rank, "C2")[:64])]


def _encoder(rank):
    rows = make_clicks()
    return st.data.Encoder.fit(rows.assign(C2=(2 * rows["C2"]) % 5) if rank else rows)


@pytest.mark.filterwarnings("ignore:the number of rows is unknown")
@pytest.mark.parametrize("kind", OTHERS)
def test_ranks_that_are_given_something_else_are_refused_by_name(tmp_path, kind):
    give, said = OTHERS[kind]

    def work(comm):
        given = {"train": make_clicks(), "encoder": _encoder(0), "batch_size": 64}
        given |= give(comm.rank, tmp_path)
        encoder = given.pop("encoder")
        model = st.models.DLRM(rows=encoder.rows, num_dense=1, dim=4, bottom=(8,), top=(8,))
        trainer = st.Trainer(model, ADAGRAD, encoder=encoder, parallel=Group(comm, "row", 2))
        trainer.fit(given.pop("train"), progress=None, **given)

    for error in run_ranks(2, work, deadline=60):
        assert isinstance(error, (ConfigError, DataError)) and said in str(error), error


@pytest.mark.parametrize("other", [lambda rows: rows[:60], lambda rows: rows[4:68]])
def test_a_step_refuses_another_batch_on_another_rank(other):
    def work(comm):
        encoder, rows = _encoder(0), make_clicks()[:64]
        model = st.models.DLRM(rows=encoder.rows, num_dense=1, dim=4, bottom=(8,), top=(8,))
        trainer = st.Trainer(model, ADAGRAD, parallel=Group(comm, "row", 4))
        trainer.step(encoder.encode(other(make_clicks()) if comm.rank else rows))

    for error in run_ranks(2, work):
        assert isinstance(error, DataError) and "different values on rank 1 of 2 (host1)" in str(
            error
        )


def test_ranks_on_other_kinds_of_cpu_are_refused():
    def work(comm):
        target = ("cpu", "llvm")[comm.rank]  # this machine's, and any
        return st.Trainer(model(), ADAGRAD, target=target, parallel=Group(comm, "auto", None))

    for rank, error in enumerate(run_ranks(2, work)):
        assert f"rank {rank} of 2 (host{rank}) has the target" in str(error)
        assert "use machines with the same kind of CPU, or target='llvm' on all" in str(error)


def test_tables_that_no_rank_has_room_for_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr(shards, "total_memory", lambda: 40_000)

    def work(comm):
        return st.Trainer(model(), ADAGRAD, parallel=Group(comm, "row", None))

    # 2,343 rows of 8 numbers and 8 slots, in two.
    said = "rank 0 of 2 (host0) needs 0.0 GB for rows and slots"
    for error in run_ranks(2, work):
        assert said in str(error) and "use 4 ranks, each on its own machine" in str(error)


def test_eight_parts_are_not_for_three_ranks():
    def work(comm):
        return st.Trainer(model(), ADAGRAD, parallel=Group(comm, "auto", 8))

    assert all(
        "3 ranks cannot share: use 1 or 2 or 4 or 8 ranks" in str(e) for e in run_ranks(3, work)
    )


def test_mpi_that_is_missing_or_of_another_launcher_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ConfigError, match="pip install mpi4py"):
        st.parallel.mpi()
    alone = SimpleNamespace(rank=0, size=1)
    world = SimpleNamespace(COMM_WORLD=SimpleNamespace(Dup=lambda: alone))
    monkeypatch.setattr(mpi_comm, "_import_mpi", lambda: world)
    for started_by, number in {"PMI_SIZE": 4, "WORLD_SIZE": 5}.items():  # another MPI's, torchrun
        monkeypatch.setenv(started_by, str(number))
        with pytest.raises(ConfigError, match=f"{number} processes were .* MPI sees 1") as e:
            st.parallel.mpi()
    assert "under torchrun, use sparsetrain.parallel.torch()" in str(e.value)


def test_torch_that_is_missing_or_of_another_launcher_is_named(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        with pytest.raises(ConfigError, match="pip install torch, or take MPI"):
            st.parallel.torch()
    pytest.importorskip("torch")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="torchrun did not start this process: .*RANK expected"):
        st.parallel.torch()
