# SPDX-License-Identifier: Apache-2.0
"""Rows of an epoch: each on one rank, once, in steps that all ranks take alike."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain.data.batch import Position
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.parallel.comm import Comm
from sparsetrain.parallel.shared_rows import SharedRows
from tests.parallel.threads import all_of, run_ranks

PARTS, BATCH = 4, 32
SIZES = (1, PARTS - 1, BATCH - 1, BATCH + 1, 3 * BATCH + 1)


def written(folder, rows, files):
    """A dataset of rows that are told apart by their only id; row groups of 5 rows."""
    ids = np.arange(rows)
    for number, own in enumerate(np.array_split(ids, files)):
        columns = {"label": own % 2, "I1": own * 0.5, "C1": own}
        pq.write_table(pa.table(columns), folder / f"{number:02}.parquet", row_group_size=5)
    paths = [str(folder / f"{number:02}.parquet") for number in range(files)]
    encoder = st.data.Encoder.fit(paths, min_count=1)
    return st.data.Dataset(paths, encoder)


def steps_of(dataset, comm, seed, start=None):
    """Ids of each step's parts on this rank, and what all ranks know of the step."""
    each = PARTS // comm.size
    own = range(comm.rank * each, (comm.rank + 1) * each)
    rows = SharedRows(dataset, comm, PARTS, own)
    shares = rows.batches(BATCH, seed=seed, epoch=1, position=start or Position(1))
    return [
        ({p: b.ids[:, 0].tolist() for p, b in s.parts.items()}, [*s.sizes], s.position)
        for s in shares
    ]


def on_ranks(dataset, size, seed, start=None):
    """The whole steps: ids by part, sizes, position."""
    ranks = all_of(run_ranks(size, lambda comm: steps_of(dataset, comm, seed, start)))
    steps = []
    for same in zip(*ranks, strict=True):
        assert all(step[1:] == same[0][1:] for step in same)
        steps.append(({p: ids for step in same for p, ids in step[0].items()}, *same[0][1:]))
    return steps


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("files", [1, 17])
@pytest.mark.parametrize("seed", [None, 3])
def test_every_row_is_read_once_whatever_the_ranks(tmp_path, rows, files, seed):
    dataset = written(tmp_path, rows, min(files, rows))
    steps = on_ranks(dataset, 1, seed)
    found = [id_ for ids, *_ in steps for part in sorted(ids) for id_ in ids[part]]
    assert len(steps) == -(-rows // BATCH)
    assert len(found) == len({*found}) == rows
    assert seed is None or rows < 9 or found != sorted(found)
    for ids, sizes, _ in steps:
        assert {part: len(own) for part, own in ids.items()} == {
            part: size for part, size in enumerate(sizes) if size
        }
    assert steps[-1][2] == Position(2)
    for size in (2, 4):
        assert on_ranks(dataset, size, seed) == steps
    for number in range(1, len(steps)):
        assert on_ranks(dataset, 2, seed, steps[number - 1][2]) == steps[number:]


def test_one_part_is_read_in_the_order_of_one_process(tmp_path):
    dataset = written(tmp_path, 3 * BATCH + 1, 3)
    shares = SharedRows(dataset, Comm(), 1, range(1)).batches(
        BATCH, seed=3, epoch=1, position=Position(1)
    )
    alone = dataset.batches(BATCH, seed=3, epoch=1)
    for share, batch in zip(shares, alone, strict=True):
        assert (share.parts[0].ids == batch.ids).all()
        assert share.position == batch.position


def test_a_rank_reads_its_own_row_groups(tmp_path):
    dataset, read = written(tmp_path, 3 * BATCH, 1), []

    def part(index):
        read.append(index)
        return type(dataset)._part(dataset, index)

    dataset._part = part
    own = SharedRows(dataset, Comm(), PARTS, range(1))
    for _ in own.batches(BATCH, seed=None, epoch=0, position=Position()):
        pass
    assert read == [*range(5)]  # of 20 row groups of 5 rows, the first 24 rows


def test_batches_of_the_users_own_are_those_of_all_ranks():
    made = [st.Batch([[0.5]] * n, [[1]] * n, [1] * n) for n in (8, 8)]

    def work(comm):
        dataset = st.data.Dataset(made[: 2 - comm.rank], None)
        rows = SharedRows(dataset, comm, 2, range(comm.rank, comm.rank + 1))
        return [*rows.batches(8, seed=None, epoch=0, position=Position())]

    for error in run_ranks(2, work):
        assert isinstance(error, DataError)
        assert r"the next batch has [8, 0] rows on the ranks" in str(error)


def test_a_batch_that_parts_do_not_divide_is_refused():
    model = st.models.DLRM(rows=[9, 5], dim=4, num_dense=3, bottom=(4,), top=(4,))
    trainer = st.Trainer(model, st.optim.adagrad(0.05), parallel=st.parallel.local(8))
    with pytest.raises(ConfigError, match="give 96 or a different multiple of 8"):
        trainer.fit([], batch_size=100)
