# SPDX-License-Identifier: Apache-2.0
"""Time of a step of PyTorch's own loop: `st.torch.RowSparseEmbedding` beside `nn.Embedding`.

    python benchmarks/torch_loop.py
    python benchmarks/torch_loop.py --features 1 --rounds 5

A step is zero_grad, lookup, backward and the optimizer's step, in one table that all features
share; `--hidden` puts layers of PyTorch behind it. Ids are Zipf, scattered over the table. Each arm
is a process of its own, and they take turns. Printed are medians of milliseconds, with the tenth
and the ninetieth percentile, and by how many MiB the process grew while it stepped.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from harness.batches import make_batches
from harness.configs import Config
from harness.options import available_threads, positive

WARM = 64


def main() -> None:
    chosen = _options()
    if chosen.arm:
        print(json.dumps(_measure(chosen)))
        return
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    grown = dict.fromkeys(ARMS, 0.0)
    for _ in range(chosen.rounds):
        for arm in ARMS:
            done = subprocess.run(
                [sys.executable, *sys.argv, "--arm", arm], capture_output=True, text=True
            )
            if done.returncode:
                sys.exit(done.stderr)
            result = json.loads(done.stdout)
            times[arm] += result["times"]
            grown[arm] = max(grown[arm], result["grown"])
    print(
        f"{chosen.rows:,} x {chosen.width}, {chosen.batch:,} x {chosen.features} ids a step, "
        f"{chosen.threads} threads, {len(times[PEER]):,} steps an arm"
    )
    for arm, seconds in times.items():
        low, median, high = 1e3 * np.percentile(seconds, [10, 50, 90])
        ratio = np.median(times[PEER]) / np.median(seconds)
        print(f"{arm:36} {median:8.3f} ({low:.3f} to {high:.3f}) x {ratio:5.1f}  {grown[arm]:6.1f}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=positive, default=10_000_000)
    parser.add_argument("--width", type=positive, default=16)
    parser.add_argument("--batch", type=positive, default=2048)
    parser.add_argument("--features", type=positive, default=8)
    parser.add_argument("--hidden", type=positive, nargs="*", default=[], help="widths of layers")
    parser.add_argument("--threads", type=positive, default=available_threads())
    parser.add_argument("--steps", type=positive, default=200)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _peer(rows: int, width: int) -> tuple[Any, Any]:
    import torch

    table = torch.nn.Embedding(rows, width, sparse=True)
    return table, torch.optim.SparseAdam(table.parameters(), lr=0.001)


def _ours(name: str, **options: Any) -> Any:
    def make(rows: int, width: int) -> tuple[Any, Any]:
        import sparsetrain as st

        table = st.torch.RowSparseEmbedding(rows, width)
        rule = getattr(st.optim, name)(0.001, **options)
        return table, st.torch.RowSparseOptimizer(table.parameters(), rule)

    return make


PEER = "nn.Embedding, SparseAdam"
ARMS = {
    PEER: _peer,
    "RowSparseEmbedding, adam": _ours("adam"),
    "RowSparseEmbedding, exact adam": _ours("adam", mode="exact"),
    "RowSparseEmbedding, rowwise_adagrad": _ours("rowwise_adagrad"),
}


def _measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Times of steps of one arm."""
    import torch

    torch.set_num_threads(chosen.threads)
    config = Config((chosen.rows,) * chosen.features, chosen.width, (), ())
    batches = [torch.from_numpy(batch.ids) for batch in make_batches(config, chosen.batch, WARM)]
    table, optimizer = ARMS[chosen.arm](chosen.rows, chosen.width)
    widths = [chosen.features * chosen.width, *chosen.hidden]
    layers = [torch.nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False)]
    dense = torch.nn.Sequential(torch.nn.Flatten(), *layers)
    others = torch.optim.SGD(dense.parameters(), lr=0.001) if layers else None
    cotangent = torch.randn(chosen.batch, widths[-1])
    times = []
    for number in range(2 * WARM + chosen.steps):
        if number == 2 * WARM:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        optimizer.zero_grad()
        dense.zero_grad()
        dense(table(batches[number % WARM])).backward(cotangent)
        optimizer.step()
        if others is not None:
            others.step()
        times.append(time.perf_counter() - start)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"times": times[2 * WARM :], "grown": grown / 1024}


if __name__ == "__main__":
    main()
