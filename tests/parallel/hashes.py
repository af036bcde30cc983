# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of what ranks train on a click log: losses, tables, slots and dense weights.

    python -m tests.parallel.hashes train.parquet             # by the MPI of this Python
    python -m tests.parallel.hashes train.parquet torchrun threads

Every case of `CASES` takes 200 steps in 4 parts, by each job of `JOBS`. Prints a line a case; the
exit status is 1 if a job's hash is another, or in one part that of `parallel=None`.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import sparsetrain as st
from sparsetrain.parallel.group import Group
from sparsetrain.system.launcher import is_torchrun
from tests.helpers import read_checkpoint
from tests.parallel.ends import ROOT, launch
from tests.parallel.threads import all_of, run_ranks

ROWS, STEPS = 128, 200
# Ranks, threads of each, and where tables lie.
JOBS = {
    "mpiexec": [
        *((1, 1, "table"), (2, 1, "auto"), (4, 1, "row"), (2, 1, "table"), (4, 1, "table")),
        *((4, 1, "auto"), (1, 2, "table"), (2, 2, "row")),
    ],
    "torchrun": [(2, 1, "auto"), (4, 1, "row")],
    "threads": [(2, 1, "row"), (4, 1, "auto")],
}
BAGS = {"pooling": "sum"}
# Name -> optimizer and, if it differs, the model: bags, a shared table, weights of rows.
CASES = {
    "SGD, weights of rows": (st.optim.sgd(0.1), {"row_weights": True}),
    "Adagrad": (st.optim.adagrad(0.02), {}),
    "row-wise Adagrad, sums of bags": (st.optim.rowwise_adagrad(0.02), BAGS),
    "lazy Adam, means of bags, a shared table": (
        st.optim.adam(0.001),
        {"pooling": "mean", "share_embedding": {"C1": "C2"}},
    ),
    "exact Adam with a cap, weighted bags": (
        st.optim.adam(0.001, mode="exact", max_replayed_steps=20),
        {**BAGS, "weighted": True},
    ),
    "FTRL": (st.optim.ftrl(0.05), {}),
    "clipped, decayed, grouped Adagrad": (
        st.optim.adagrad(
            0.02,
            weight_decay=1e-4,
            clip_norm=0.5,
            groups=[
                st.optim.ParamGroup("embeddings.C2.*", lr=0.0),
                st.optim.ParamGroup("embeddings.C3.*", mode="exact", scale=2.0),
            ],
        ),
        {},
    ),
    "a loss scale that overflows": (st.optim.adagrad(0.02), {}),
}
OVERFLOWS = [*CASES][-1]


def prepare(parquet, file):
    """Encode the rows once, for all jobs."""
    encoder = st.data.Encoder.fit(parquet, min_count=1)
    batch = next(st.data.Dataset(parquet, encoder).batches(ROWS * STEPS - ROWS // 4))
    np.savez(file, dense=batch.dense, ids=batch.ids, labels=batch.labels, rows=encoder.rows)


def batches(data, case, changes):
    """The last has fewer rows; bags hold the ids of up to three rows in turn."""
    rng = np.random.default_rng(0)
    for number, first in enumerate(range(0, len(data["labels"]), ROWS)):
        dense, ids, labels = (
            data[name][first : first + ROWS] for name in ("dense", "ids", "labels")
        )
        weights = rng.random(len(ids)) if "row_weights" in changes else None
        if "pooling" in changes:
            edges = np.concatenate([[0], np.cumsum(rng.integers(0, 4, len(ids)))])
            at = np.arange(edges[-1]) % len(ids)
            own = rng.random(edges[-1]) if "weighted" in changes else None
            ids = [st.data.Ragged(column[at], edges, own) for column in ids.T]
        if case == OVERFLOWS and number == 2:  # in a row of the last part
            dense = dense.copy()
            dense[-1] = 1e6
        yield st.Batch(dense, ids, labels, weights)


def digest(data, case, group, folder):
    """Train, save, and return the hash."""
    optimizer, changes = CASES[case]
    rows = data["rows"].tolist()
    if "share_embedding" in changes:
        rows[0] = rows[1] = max(rows[:2])
    model = st.models.DLRM(rows=rows, dim=8, bottom=(32, 8), top=(32,), num_dense=13, **changes)
    scale = st.precision.LossScale(1e37, every=20, most=1e37) if case == OVERFLOWS else None
    trainer = st.Trainer(model, optimizer, seed=1, loss_scale=scale, parallel=group)
    losses = [float(trainer.step(batch)) for batch in batches(data, case, changes)]
    trainer.save(folder)
    arrays, manifest = read_checkpoint(folder)
    assert manifest["steps"] >= STEPS - 20 and (
        (scale is None) or manifest["loss_scale"]["overflows"]
    )
    found = hashlib.sha256(json.dumps([losses, manifest["loss_scale"]]).encode())
    for name in sorted(arrays):
        found.update(name.encode() + arrays[name].tobytes())
    return found.hexdigest()


def all_cases(file, group, folder):
    with np.load(file) as archive:
        data = dict(archive)
    return {case: digest(data, case, group, folder) for case in CASES}


def of_job(by, ranks, threads, shard, file, folder):
    """The hashes that a job finds."""
    if by == "threads":
        return all_of(run_ranks(ranks, lambda c: all_cases(file, Group(c, shard, 4), folder)))[0]
    command = ["-m", "tests.parallel.hashes", "--job", shard, str(file), str(folder)]
    own = {"places": [ROOT] * ranks, "by": by, "TVM_NUM_THREADS": str(threads)}
    printed, errors = (job := launch(*command, **own)).communicate()
    assert job.returncode == 0, errors
    return json.loads(printed)


def main(parquet, *engines):
    with tempfile.TemporaryDirectory() as name:
        file, folder = Path(name, "rows.npz"), Path(name, "saved")
        prepare(parquet, file)
        found = {}
        for by in engines or ["mpiexec", "threads"]:
            for job in JOBS[by]:
                found[(by, *job)] = of_job(by, *job, file, folder)
                whole = hashlib.sha256("".join(found[(by, *job)].values()).encode()).hexdigest()
                print(
                    f"{by}, {job[0]} ranks of {job[1]} threads, {job[2]}: {whole[:16]}", flush=True
                )
        alone = [all_cases(file, group, folder) for group in (None, st.parallel.local(parts=1))]
    bad = alone[0] != alone[1]
    print("one rank and one part, and parallel=None:", "unequal" if bad else "equal")
    for case in CASES:
        hashes = {job: each[case] for job, each in found.items()}
        bad |= len({*hashes.values()}) > 1
        print(f"{case:42} {len(hashes)} jobs:", *{each[:16] for each in hashes.values()})
    sys.exit(bad)


def run_job(shard, file, folder):
    group = (st.parallel.torch if is_torchrun() else st.parallel.mpi)(shard, parts=4)
    found = all_cases(file, group, folder)
    if group.comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    run_job(*sys.argv[2:]) if sys.argv[1] == "--job" else main(*sys.argv[1:])
