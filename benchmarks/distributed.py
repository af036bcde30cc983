# SPDX-License-Identifier: Apache-2.0
"""Time and bytes of a step on several ranks, beside one process that uses all their threads.

Both arms live in the same processes and take turns: in a turn of the one process, rank 0 computes
on all threads and the others sleep; then all ranks compute, each on its share.

    P=benchmarks/distributed.py
    mpiexec -n 2 --bind-to none python $P --config kaggle --batch 2048 --cap 2000000
    mpiexec -n 2 --bind-to none python $P --config mlperf --cap 200000 --shard row
    python benchmarks/distributed.py --config kaggle          # one rank, beside unfused steps
"""

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np
from harness.batches import make_batches, mean_unique
from harness.configs import CONFIGS

import sparsetrain as st
from sparsetrain.parallel.group import Group
from sparsetrain.runtime import set_num_threads
from sparsetrain.runtime.threads import available_cores
from sparsetrain.system.launcher import processes_started
from sparsetrain.training.step import TrainingStep

TURNS, STEPS, WARM = 12, 20, 3


class Unfused(TrainingStep):
    """The gradient program, then the update, as ranks take a step."""

    _reads_gradients = True


def main() -> None:
    """Measure, and let rank 0 print."""
    options = _options()
    config = CONFIGS[options.config]
    config = replace(config, rows=tuple(min(rows, options.cap) for rows in config.rows))
    ranks = processes_started()
    group = st.parallel.mpi(options.shard) if ranks > 1 else st.parallel.local()
    comm = group.comm
    drawn = make_batches(config, options.batch, options.batches)
    batches = [st.Batch(*each) for each in drawn]
    sharded = _trainer(config, group)
    arms = {f"{comm.size} ranks": sharded}
    if comm.rank == 0:
        arms["one process"] = _trainer(config, None)
        if comm.size == 1:
            arms["one process"].training_step = Unfused(arms["one process"])
    times: dict[str, list[float]] = {name: [] for name in ("one process", f"{ranks} ranks")}
    before = 0
    for turn in range(TURNS):
        for name, own in times.items():
            alone = name == "one process"
            if alone and comm.rank:
                comm.any(False)  # asleep until rank 0 is done
                continue
            set_num_threads(
                available_cores() if alone or ranks == 1 else available_cores() // ranks
            )
            before = comm.sent
            for step in range(STEPS):
                batch = batches[(turn * STEPS + step) % len(batches)]
                began = time.perf_counter()
                float(arms[name].step(batch))
                if step >= WARM:
                    own.append(time.perf_counter() - began)
            if alone and ranks > 1:
                comm.any(False)
    sent = (comm.sent - before) / STEPS
    unique = mean_unique(config, drawn)
    if comm.rank == 0:
        _report(options, config, times, sent, unique, comm.size)


def _trainer(config, group: Group | None) -> st.Trainer:
    model = st.models.DLRM(
        rows=config.rows,
        dim=config.dim,
        bottom=config.bottom,
        top=config.top,
        num_dense=config.num_dense,
    )
    return st.Trainer(model, st.optim.adagrad(0.01), target="cpu", parallel=group)


def _report(options, config, times, sent: float, unique: float, ranks: int) -> None:
    medians = {name: 1e3 * statistics.median(own) for name, own in times.items()}
    print(f"{options.config}, batch {options.batch}, tables up to {options.cap:,} rows, ", end="")
    print(f"shard {options.shard}, {available_cores()} cores")
    for name, own in times.items():
        low, high = np.percentile(own, [10, 90]) * 1e3
        print(f"{name:12} median {medians[name]:7.2f} ms, p10 {low:.2f}, p90 {high:.2f}")
    print(f"ratio {medians[f'{ranks} ranks'] / medians['one process']:.3f}")
    print(f"sent by rank 0 in a step: {sent / 1e3:.1f} KB; {unique:,.0f} unique rows in a batch")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", choices=CONFIGS, default="kaggle")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--batches", type=int, default=64)
    parser.add_argument("--cap", type=int, default=2_000_000, help="most rows of a table")
    parser.add_argument("--shard", choices=("auto", "table", "row"), default="auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
