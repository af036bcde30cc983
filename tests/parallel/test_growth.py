# SPDX-License-Identifier: Apache-2.0
"""Growth by day on ranks: the bits of one process that grows, however tables lie."""

import pytest

import sparsetrain as st
from sparsetrain.errors import ConfigError, ParallelError
from sparsetrain.parallel.comm import Comm
from sparsetrain.parallel.group import Group
from tests import small_dlrm
from tests.helpers import slow_except
from tests.parallel.threads import all_of, run_ranks
from tests.training.test_grow_tables import fit, newer

OPTIMIZERS = {
    "adagrad": lambda: st.optim.adagrad(0.05),
    "adam, exact": lambda: st.optim.adam(0.01, mode="exact", update="sparse"),
    "adamw, exact": lambda: st.optim.adamw(0.01, mode="exact", update="sparse"),
}
SHARDS = {"rows": "row", "tables": "table", "mixed": {"C1": 1, "C2": "row", "C3": 0}}
CASES = [(o, s) for o in OPTIMIZERS for s in SHARDS]
QUICK = [("adagrad", "mixed"), ("adamw, exact", "rows"), ("adam, exact", "tables")]


def grown_by(comm, optimizer, shard):
    """A trainer of two days, of which the second has new values."""
    made = st.Trainer(
        small_dlrm.model(),
        optimizer,
        target="cpu",
        encoder=small_dlrm.encoder(),
        seed=3,
        parallel=Group(comm, shard, 2),
    )
    fit(made, small_dlrm.raw_rows(96))
    scores = made.predict(newer())
    grown = made.extended(made.encoder.extended(newer(), min_count=1))
    assert grown.encoder.rows == [58, 28, 7]
    assert grown.predict(newer()).tobytes() == scores.tobytes()
    fit(grown, newer(96))
    return grown


@pytest.mark.parametrize(("optimizer", "shard"), slow_except(QUICK, CASES))
def test_ranks_that_grow_have_the_bits_of_one_process_that_grows(tmp_path, optimizer, shard):
    def work(comm):
        name = f"of {comm.size}"
        grown_by(comm, OPTIMIZERS[optimizer](), SHARDS[shard]).save(tmp_path / name)

    work_alone = grown_by(Comm(), OPTIMIZERS[optimizer](), "auto")
    work_alone.save(tmp_path / "of 1")
    all_of(run_ranks(2, work))
    found, wanted = (st.load(tmp_path / f"of {size}", target="cpu") for size in (2, 1))
    small_dlrm.assert_same_state(found.state_dict(), wanted.state_dict())


def test_tables_stay_where_they_were(tmp_path):
    def work(comm):
        return [
            {t.name: t.owner for plan in grown.parallel.plan.values() for t in plan.tables}
            for grown in [grown_by(comm, OPTIMIZERS["adagrad"](), SHARDS["mixed"])]
        ]

    assert all_of(run_ranks(2, work))[0] == [{"C1": 1, "C2": -1, "C3": 0}]


def test_ranks_with_other_newer_data_are_refused():
    def work(comm):
        made = st.Trainer(
            small_dlrm.model(),
            st.optim.adagrad(0.05),
            target="cpu",
            encoder=small_dlrm.encoder(),
            parallel=Group(comm, "row", 2),
        )
        rows = newer() if comm.rank else small_dlrm.raw_rows(100)
        made.extended(made.encoder.extended(rows, min_count=1))

    errors = run_ranks(2, work)
    assert all(isinstance(error, ConfigError | ParallelError) for error in errors)
    assert any("give all ranks the same" in str(error) for error in errors)
