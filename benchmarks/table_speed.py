# SPDX-License-Identifier: Apache-2.0
"""Time of lookups and row updates in tables of each dtype.

    python benchmarks/table_speed.py
    python benchmarks/table_speed.py --width 128 --rows 1000000 --optimizers sgd adam

Rows are drawn evenly from a table that is in no cache. An update is that of the touched rows by a
plan that is there: reading, arithmetic, rounding, writing. Dtypes take turns, so that a disturbance
meets all. Printed are medians of milliseconds, with the tenth and the ninetieth percentile.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np
import tvm
from tvm import relax

import sparsetrain as st
from sparsetrain import runtime
from sparsetrain.embedding import lookup
from sparsetrain.kernels.table_formats import FOR_PREDICTION, INT8, TABLE_DTYPES, stored_width
from sparsetrain.sparse_tensor import RowSparse

BATCHES, WARM = 6, 2
LOOKED_UP = (*TABLE_DTYPES, FOR_PREDICTION)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--ids", type=int, default=2048 * 26, help="of a step")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--optimizers", nargs="+", default=["sgd", "adagrad", "rowwise_adagrad"])
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, chosen.rows, chosen.ids).astype(np.int32) for _ in range(BATCHES)]
    shape = f"{chosen.rows:,} x {chosen.width}, {chosen.ids:,} ids, {runtime.num_threads()} threads"
    print(f"milliseconds; {shape}")
    report("lookup", times(lookups(ids, chosen), chosen.rounds))
    for name in chosen.optimizers:
        report(f"update, {name}", times(updates(name, ids, chosen), chosen.rounds))


Work = Callable[[int], object]  # of the batch with this number


def lookups(ids: list[np.ndarray], chosen: argparse.Namespace) -> dict[str, Work]:
    """A program for each dtype that gives the rows of some ids."""
    tensors = [runtime.as_tensor(batch) for batch in ids]

    def work(dtype: str) -> Work:
        shape = chosen.rows, stored_width(chosen.width, dtype)
        table, program = runtime.zeros(shape, dtype), lookup_program(shape, dtype).compile()
        return lambda n: program({"table": table}, {"ids": tensors[n]})

    return {dtype: work(dtype) for dtype in LOOKED_UP}


def lookup_program(shape: tuple[int, int], dtype: str) -> st.Program:
    table = relax.Var("table", relax.TensorType(shape, dtype))
    ids = relax.Var("ids", relax.TensorType((tvm.tirx.Var("N", "int64"),), "int32"))
    builder = relax.BlockBuilder()
    with builder.function("rows", [ids, table], attrs={"num_input": 1}):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(lookup(table, ids)))
        builder.emit_func_output(result)
    return st.Program(builder.get(), "rows")


def updates(name: str, ids: list[np.ndarray], chosen: argparse.Namespace) -> dict[str, Work]:
    """For each dtype, the updates of rows whose gradients have been summed."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal((chosen.ids, chosen.width)).astype(np.float32) * 1e-3
    gradients = [RowSparse.from_numpy(batch, values, chosen.rows).coalesce() for batch in ids]

    def work(dtype: str) -> Work:
        width = stored_width(chosen.width, dtype)
        params = {"table": runtime.zeros((chosen.rows, width), dtype)}
        optimizer = st.optim.OPTIMIZERS[name](0.01, update="sparse")
        state = optimizer.init(params)
        return lambda n: optimizer.apply_(params, {"table": gradients[n]}, state)

    by_row = all(slot.per == "row" for slot in st.optim.OPTIMIZERS[name](0.01).formula.slots)
    return {dtype: work(dtype) for dtype in TABLE_DTYPES if by_row or dtype != INT8}


def times(works: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    found = defaultdict(list)
    for turn in range(WARM + rounds):
        for dtype, work in works.items():
            for n in range(BATCHES):
                begin = time.perf_counter()
                work(n)
                if turn >= WARM:
                    found[dtype].append(1e3 * (time.perf_counter() - begin))
    return found


def report(label: str, found: Mapping[str, list[float]]) -> None:
    base = float(np.median(found["float32"]))
    for dtype, each in found.items():
        low, middle, high = np.quantile(each, (0.1, 0.5, 0.9))
        print(
            f"{label:<24} {dtype:>9} {middle:7.3f} ({low:.3f} to {high:.3f})  "
            f"{middle / base:.2f} of float32's"
        )


if __name__ == "__main__":
    main()
