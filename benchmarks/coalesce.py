# SPDX-License-Identifier: Apache-2.0
"""Sum of the duplicates of a row-sparse gradient, next to PyTorch's ways to do it.

    peers/bin/python benchmarks/coalesce.py --threads 1

Needs PyTorch in the same interpreter. The arms take turns in one process; printed are the least
microseconds of each, and in parentheses the median.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

WIDTH = 16
TURNS, CALLS = 60, 15


def main() -> None:
    """Print a line for each number of ids and law."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--ids", type=int, nargs="+", default=[2048, 53_248])
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(options.threads)  # before TVM is imported
    for count in options.ids:
        for law in ("uniform", "zipf"):
            seconds = _measure(_arms(count, options.rows, law, options.threads))
            found = (
                f"{arm} {min(each) * 1e6:.0f} us ({statistics.median(each) * 1e6:.0f})"
                for arm, each in seconds.items()
            )
            print(f"{count:,} {law} ids: {', '.join(found)}", flush=True)


def _arms(count: int, rows: int, law: str, threads: int) -> dict[str, Callable]:
    import numpy as np
    import torch

    from sparsetrain.sparse_tensor import RowSparse

    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, rows, count) if law == "uniform" else rng.zipf(1.2, count) % rows
    values = rng.standard_normal((count, WIDTH)).astype("f4")
    known = RowSparse.from_numpy(drawn.astype("i4"), values, rows)
    ids, of_torch = torch.from_numpy(drawn.astype("i8")), torch.from_numpy(values)

    def ours() -> RowSparse:
        return RowSparse(known.indices, known.values, rows).coalesce()  # a new one has no plan

    def unique() -> tuple:
        found, place = torch.unique(ids, return_inverse=True)
        return found, torch.zeros(len(found), WIDTH).index_add_(0, place, of_torch)

    def coalesce() -> torch.Tensor:
        size = (rows, WIDTH)
        return torch.sparse_coo_tensor(ids[None], of_torch, size, check_invariants=False).coalesce()

    np.testing.assert_allclose(ours().values.numpy(), unique()[1].numpy(), rtol=1e-4, atol=1e-4)
    return {"ours": ours, "unique and index_add": unique, "coalesce": coalesce}


def _measure(arms: dict[str, Callable]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    for _ in range(TURNS):
        for arm, run in arms.items():
            run()
            for _ in range(CALLS):
                begin = time.perf_counter()
                run()
                seconds[arm].append(time.perf_counter() - begin)
    return seconds


if __name__ == "__main__":
    main()
