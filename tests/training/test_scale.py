# SPDX-License-Identifier: Apache-2.0
"""A step costs what its ids cost: rows that are not looked up are not written, copied or visited.

The test with 50 million rows needs 7 GB of memory and half a minute, so it runs on request only:
``SPARSETRAIN_LARGE_TESTS=1 python -m pytest -s tests/test_scale.py -k million``.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.data import Batch, Ragged
from tests import heap, small_dlrm
from tests.helpers import slow_except

OPTIMIZERS = {
    "sgd": st.optim.sgd(0.1),
    "adagrad": st.optim.adagrad(0.1, initial=0.1),
    "rowwise_adagrad": st.optim.rowwise_adagrad(0.1),
}
DIM = 16
ROOT = Path(__file__).parents[2]
RUNS = [*(("single", name) for name in OPTIMIZERS), ("weighted", "adagrad")]


@pytest.mark.parametrize(("kind", "name"), slow_except([("weighted", "adagrad")], RUNS))
def test_rows_that_are_never_looked_up_keep_their_bits(kind, name):
    trainer = small_dlrm.trainer(kind, OPTIMIZERS[name])
    before = trainer.state_dict()
    for seed in range(30):
        trainer.step(_with_even_ids(small_dlrm.batch(37, seed, kind)))
    for array_name, after in trainer.state_dict().items():
        if array_name.startswith("embeddings."):
            assert after[1::2].tobytes() == before[array_name][1::2].tobytes(), array_name
            assert (after[:6:2] != before[array_name][:6:2]).all(), array_name


def _with_even_ids(batch: Batch) -> Batch:
    """Return the batch with odd ids moved to the even one below."""
    ids = batch.ids
    if isinstance(ids, tuple):
        ids = [Ragged(bags.ids // 2 * 2, bags.offsets, bags.weights) for bags in ids]
    else:
        ids = ids // 2 * 2
    return Batch(batch.dense, ids, batch.labels)


@pytest.fixture(scope="module")
def trainers():
    """A compiled trainer for a table of a thousand rows and one for a million."""
    made = {rows: _trainer(rows) for rows in (10**3, 10**6)}
    _steps(made[10**3], 10**3, count=1)  # compiles the optimizer's kernels
    for trainer in made.values():
        trainer.compile()
    return made


def test_the_memory_of_a_step_does_not_depend_on_the_rows_of_the_table(trainers):
    # From the first step on: memory that TVM takes then, it keeps and uses again.
    table_bytes = 10**6 * DIM * 4
    for rows, trainer in trainers.items():
        growth = _peak_growth(lambda t=trainer, r=rows: _steps(t, r, count=20))
        assert growth < table_bytes / 8, f"{rows} rows: {growth / 2**20:.1f} MiB"


def test_the_time_of_a_step_does_not_depend_on_the_rows_of_the_table(trainers):
    # Updating all rows takes 20 times as long.
    small, large = (min(_seconds(trainers[rows], rows)) for rows in (10**3, 10**6))
    assert large < 5 * small


@pytest.mark.skipif("SPARSETRAIN_LARGE_TESTS" not in os.environ, reason="needs 7 GB of memory")
def test_fifty_million_rows_train_in_tables_and_slots_and_half_a_gigabyte():
    rows = 50_000_000
    peak = _peak_of_own_process(rows)
    limit = 2 * rows * DIM * 4 + 500_000_000
    print(f"\npeak {peak / 1e9:.3f} GB, tables and slots {2 * rows * DIM * 4 / 1e9:.3f} GB")
    assert peak <= limit


def _trainer(rows: int) -> st.Trainer:
    model = st.models.DLRM(rows=[rows], dim=DIM, bottom=(16,), top=(16,), num_dense=13)
    return st.Trainer(model, st.optim.adagrad(0.02))


def _batch(rows: int, seed: int, size: int = 512) -> Batch:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, rows, (size, 1))
    return Batch(rng.normal(size=(size, 13)), ids, rng.integers(0, 2, size))


def _steps(trainer: st.Trainer, rows: int, count: int) -> None:
    for seed in range(count):
        trainer.step(_batch(rows, seed))


def _seconds(trainer: st.Trainer, rows: int) -> list[float]:
    batches = [_batch(rows, seed) for seed in range(10)]
    taken = []
    for batch in 5 * batches:
        began = time.perf_counter()
        trainer.step(batch)
        taken.append(time.perf_counter() - began)
    return taken


def _peak_growth(work) -> int:
    """Bytes by which the resident memory of this process grew at most during `work()`."""
    heap.give_back()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    except OSError:
        pytest.skip("this system does not reset the peak of resident memory")
    before = _memory("VmRSS")
    work()
    return _memory("VmHWM") - before


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def _peak_of_own_process(rows: int) -> int:
    # TVM imports PyTorch where it is installed: 250 MB that have nothing to do with this.
    script = f"import sys; sys.modules['torch'] = None; from {__name__} import train; train({rows})"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return int(done.stdout)


def train(rows: int) -> None:
    """Train with a table of so many rows; print the peak memory, and times to stderr."""
    began = time.perf_counter()
    trainer = _trainer(rows)
    print(f"memory filled after {time.perf_counter() - began:.1f} s", file=sys.stderr)
    trainer.compile()
    for size in (128, 2048):
        batches = [_batch(rows, seed, size) for seed in range(100)]
        trainer.step(batches[0])
        began = time.perf_counter()
        for batch in batches:
            trainer.step(batch)
        took = (time.perf_counter() - began) / len(batches)
        print(f"batch {size}: {1e3 * took:.2f} ms a step", file=sys.stderr)
    print(_memory("VmHWM"))
