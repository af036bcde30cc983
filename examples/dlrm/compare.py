# SPDX-License-Identifier: Apache-2.0
"""Cost of an update of one embedding table, sparse and dense, by the library's public names.

    python examples/dlrm/compare.py [ROWS]

`sparsetrain compare` does the same for many sizes, with plots; this file is for reading. Its last
part shows the timed update.
"""

import sys

import numpy as np

import sparsetrain as st

lookups, width = 2048, 16  # ids of a step, numbers in a row


def measure(rows: int) -> st.compare.Report:
    """Time each way to update a table, on the same ids."""
    case = st.compare.Case(rows, lookups=lookups, width=width, formula="sgd")
    return st.compare.run([case], arms=("stock", "dense", "sparse"))


def show(report: st.compare.Report) -> None:
    """Print time and memory of each way."""
    times = {m.arm: m.median_us for m in report.measurements}
    for m in report.measurements:
        print(
            f"{m.arm:7} {m.median_us:12,.1f} µs (p10 {m.p10_us:,.1f}, p90 {m.p90_us:,.1f})"
            f"  {times[m.arm] / times['sparse']:9,.1f} times row-sparse"
            f"  memory {(m.memory_bytes or 0) / 1e6:10,.3f} MB"
        )
    for left in report.left_out:
        print(f"{left.arm}: left out, {left.reason}")
    sparse = report.measurements[-1]
    print(f"{sparse.unique:,.0f} of {sparse.case.rows:,} rows touched")


def update_by_hand(rows: int) -> None:
    """Take one such step: a gradient that names its rows, applied in place."""
    rng = np.random.default_rng(0)
    table = st.runtime.zeros((rows, width), "float32")
    optimizer, params = st.optim.sgd(0.01), {"table": table}
    state = optimizer.init(params)
    ids = rng.integers(0, rows, lookups)
    gradient = st.RowSparse.from_numpy(ids, rng.standard_normal((lookups, width), "f4"), rows)
    optimizer.apply_(params, {"table": gradient}, state)
    written = np.flatnonzero(st.runtime.as_numpy(table).any(axis=1))
    print(f"{gradient}: wrote {len(written):,} rows")


if __name__ == "__main__":
    number = int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000
    show(measure(number))
    update_by_hand(number)
