# SPDX-License-Identifier: Apache-2.0
"""What an update of one embedding table costs, sparse and dense, by the library's public names.

    python examples/dlrm/compare.py [ROWS]

`sparsetrain compare` does the same over all axes, and draws it; this file is for reading. The last
part shows the update that was timed, in three lines.
"""

import sys

import numpy as np

import sparsetrain as st

lookups, width = 2048, 16  # ids of a step, numbers in a row


def measure(rows: int) -> st.compare.Report:
    """Time each way to update a table on the same ids, beside what the machine allows."""
    case = st.compare.Case(rows, lookups=lookups, width=width, formula="sgd")
    return st.compare.run([st.compare.Item("rows", case, ("stock", "dense", "sparse"))])


def tell(report: st.compare.Report) -> None:
    print(f"memory streams at {report.stream / 1e9:.1f} GB/s")
    times = {m.arm: m.median_us for m in report.measurements}
    for m in report.measurements:
        print(
            f"{m.arm:7} {m.median_us:12,.1f} µs (p10 {m.p10_us:,.1f}, p90 {m.p90_us:,.1f})"
            f"  {times[m.arm] / times['sparse']:9,.1f} times row-sparse"
            f"  memory {(m.memory_bytes or 0) / 1e6:10,.3f} MB"
        )
    for left in report.left_out:
        print(f"{left.arm}: left out, {left.why}")
    best = report.measurements[-1]
    print(
        f"{best.unique:,.0f} of {best.case.rows:,} rows touched; the roof is {best.roof_us:.1f} µs"
    )


def by_hand(rows: int) -> None:
    """The same step without the instruments: a gradient that names its rows, applied in place."""
    rng = np.random.default_rng(0)
    table = st.runtime.zeros((rows, width), "float32")
    step = st.optim.TableUpdate(st.optim.sgd(0.01), table, "sparse")
    ids = rng.integers(0, rows, lookups)
    gradient = st.RowSparse.from_numpy(ids, rng.standard_normal((lookups, width), "f4"), rows)
    step(gradient)
    written = np.flatnonzero(st.runtime.as_numpy(table).any(axis=1))
    print(f"{gradient}: wrote {len(written):,} rows")


if __name__ == "__main__":
    number = int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000
    tell(measure(number))
    by_hand(number)
