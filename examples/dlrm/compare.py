# SPDX-License-Identifier: Apache-2.0
"""Cost of one embedding table's update, sparse and dense.

    python examples/dlrm/compare.py [ROWS]

`sparsetrain compare` does the same for many sizes, with plots. The last
function here shows the update that is timed.
"""

import sys

import numpy as np

import sparsetrain as st

lookups, width = 2048, 16  # ids of a step, numbers in a row


def measure(rows: int) -> None:
    """Time each kind of update on the same ids; print time and memory."""
    case = st.compare.Case(
        rows, lookups=lookups, width=width, formula="sgd"
    )
    ways = [
        st.compare.measure(arm, case)
        for arm in ("stock", "dense", "sparse")
    ]
    sparse = ways[-1]
    for m in ways:
        if m.left_out:
            print(f"{m.arm}: left out, {m.left_out}")
            continue
        print(
            f"{m.arm:7} {m.median_us:12,.1f} µs"
            f" (p10 {m.p10_us:,.1f}, p90 {m.p90_us:,.1f})"
            f"  {m.median_us / sparse.median_us:9,.1f} times row-sparse"
            f"  memory {m.memory_bytes / 1e6:10,.3f} MB"
        )
    print(f"{sparse.unique:,.0f} of {rows:,} rows touched")


def update_by_hand(rows: int) -> None:
    """Take one step: apply a row-sparse gradient in place."""
    rng = np.random.default_rng(0)
    table = st.runtime.zeros((rows, width), "float32")
    optimizer, params = st.optim.sgd(0.01), {"table": table}
    state = optimizer.init(params)
    ids = rng.integers(0, rows, lookups)
    gradient = st.RowSparse.from_numpy(
        ids, rng.standard_normal((lookups, width), "f4"), rows
    )
    optimizer.apply_(params, {"table": gradient}, state)
    written = np.flatnonzero(st.runtime.as_numpy(table).any(axis=1))
    print(f"{gradient}: wrote {len(written):,} rows")


if __name__ == "__main__":
    number = int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000
    measure(number)
    update_by_hand(number)
