# SPDX-License-Identifier: Apache-2.0
"""Time of one training step of DeepFM and of models of sequences, next to PyTorch's.

Arms train on the same rows: ours on sequences without padding, PyTorch's padded to the longest of
the batch. BERT4Rec's softmax is over all items; DeepFM has 26
columns of 10,000 values, vectors of 16 numbers and three layers of 400. Each arm has a process of
its own; they take turns. `torch_compile` is PyTorch's with its dense part compiled.

    python benchmarks/sequences.py --model sasrec --peer-python peers/bin/python
    python benchmarks/sequences.py --model bert4rec --sequences amazon_games.txt
    python benchmarks/sequences.py --model deepfm --against torch --json

A file of sequences has a line "user item" for each event, in the order of time. Without one, the
lengths are geometric with a mean of 9, as those of Amazon's games.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

LENGTH, ITEMS = 50, 23_715
COLUMNS, VALUES, HIDDEN = 26, 10_000, (400, 400, 400)
MODELS = ("sasrec", "bert4rec", "din", "deepfm")
BATCH = {"deepfm": 2048, "din": 512}  # of others 128


def sequences(path: str | None) -> list[np.ndarray]:
    """Return item ids from 1 on, in order, of each user with three items or more."""
    if path is None:
        rng = np.random.default_rng(0)
        lengths = 3 + rng.geometric(1 / 6, 20_000)
        return [rng.integers(1, ITEMS + 1, n) for n in lengths]
    users, items = np.loadtxt(path, dtype=np.int64).T
    order = np.argsort(users, kind="stable")
    found = np.split(items[order], np.flatnonzero(np.diff(users[order])) + 1)
    return [ids for ids in found if len(ids) >= 3]


def batches(model: str, path: str | None) -> Iterator[Any]:
    """Yield batches for ever: of users each with the last LENGTH + 1 items, or of rows of ids.

    Those of models of clicks have labels behind them.
    """
    rng, size = np.random.default_rng(1), BATCH.get(model, 128)
    every = [] if model == "deepfm" else sequences(path)
    while True:
        clicks = rng.integers(0, 2, size).astype(np.float32)
        if model == "deepfm":
            yield rng.zipf(1.05, (size, COLUMNS)) % VALUES, clicks
            continue
        users = [every[n][-LENGTH - 1 :] for n in rng.integers(0, len(every), size)]
        yield (users, clicks) if model == "din" else users


def ours(model: str, threads: int) -> Callable[[Any], None]:
    """Return a step of this package."""
    import sparsetrain as st

    st.set_num_threads(threads)
    if model == "deepfm":
        made = st.models.DeepFM([VALUES] * COLUMNS, dim=16, num_dense=0, hidden=HIDDEN)
        return _ours_of_rows(st.Trainer(made, st.optim.adagrad(0.02), target="cpu"))
    if model == "din":
        rows = {"item": ITEMS + 1, "history": ITEMS + 1}
        trainer = st.Trainer(st.models.DIN(rows), st.optim.adagrad(0.02), target="cpu")
    else:
        cls = {"sasrec": st.models.SASRec, "bert4rec": st.models.BERT4Rec}[model]
        heads = 1 if model == "sasrec" else 2
        made = cls({"item": ITEMS + 1}, dim=50, heads=heads, length=LENGTH)
        trainer = st.Trainer(made, st.optim.adam(1e-3), target="cpu")

    def step(batch: Any) -> None:
        users, clicks = batch if model == "din" else (batch, None)
        history = np.concatenate([ids[:-1] for ids in users])
        offsets = np.cumsum([0, *(len(ids) - 1 for ids in users)])
        last = np.array([ids[-1] for ids in users])
        bags = [
            st.data.Ragged(history, offsets),
            st.data.Ragged(last, np.arange(len(last) + 1)),
        ]
        bags = bags[::-1] if model == "din" else bags  # in the order of its features
        float(trainer.step(st.Batch(np.empty((len(users), 0)), bags, clicks)))

    return step


def _ours_of_rows(trainer: Any) -> Callable[[Any], None]:
    import sparsetrain as st

    def step(batch: Any) -> None:
        ids, clicks = batch
        float(trainer.step(st.Batch(np.empty((len(ids), 0)), ids, clicks)))

    return step


def work(options: argparse.Namespace) -> None:
    """Take steps as the parent asks: read a number of them, print milliseconds of each."""
    if options.arm == "ours":
        step = ours(options.model, options.threads)
    else:
        from harness.torch_sequences import peer

        step = peer(options.model, options.threads, compiled=options.arm == "torch_compile")
    source = batches(options.model, options.sequences)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            batch = next(source)
            begin = time.perf_counter()
            step(batch)
            times.append(1e3 * (time.perf_counter() - begin))
        print(json.dumps(times), flush=True)


def main() -> None:
    """Measure both arms in turns and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="sasrec")
    parser.add_argument("--sequences", metavar="FILE")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of an arm in a round")
    parser.add_argument("--against", default="torch,torch_compile", help="some of these, by commas")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter with PyTorch")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        return work(options)
    given = ["--model", options.model, "--threads", str(options.threads)]
    given += ["--sequences", options.sequences] if options.sequences else []
    python = {"ours": sys.executable}
    python |= dict.fromkeys(options.against.split(","), options.peer_python)
    arms = {
        name: subprocess.Popen(
            [program, __file__, "--arm", name, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, program in python.items()
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(options.rounds + 1):
        for name, process in arms.items():
            assert process.stdin and process.stdout
            process.stdin.write(f"{options.steps}\n")
            process.stdin.flush()
            found = json.loads(process.stdout.readline())
            times[name] += found if number else []  # the first round warms up
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, found in times.items():
        low, high = np.percentile(found, [10, 90])
        ratio = medians[name] / medians["ours"]
        result = {"arm": name, "ms": medians[name], "p10": low, "p90": high, "ratio": ratio}
        shown = f"{name:14}{medians[name]:8.2f} ms   10 % {low:.2f}, 90 % {high:.2f}"
        print(json.dumps(result) if options.json else f"{shown}   {ratio:.2f} times ours")
    for process in arms.values():
        process.stdin.close()  # type: ignore[union-attr]
        process.wait()


if __name__ == "__main__":
    main()
