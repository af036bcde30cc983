# SPDX-License-Identifier: Apache-2.0
"""What an update costs: modes beside each other, the row kernel on large tables, dense parameters.

    python benchmarks/optimizers.py modes --rows 5000 --steps 1500
    python benchmarks/optimizers.py modes --rows 5000000 --steps 30
    python benchmarks/optimizers.py rows --rows 33800000
    python benchmarks/optimizers.py dense

`modes` trains one table of width 8 on 256 Zipf ids a step, with warm-up and a cosine, and checks
that exact equals dense bit for bit. `rows` times `apply_` on 53,248 Zipf ids of 26 tables in one
storage of width 16. `dense` compares one compiled kernel a parameter with one program for all.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from tvm import relax, tirx

from sparsetrain import optim, runtime
from sparsetrain.optim.kernels import dense_update_kernel
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse

WIDTH, IDS = 8, 256
FORMULAS: dict[str, Callable[..., optim.Optimizer]] = {
    "adam": optim.adam,
    "adamw": optim.adamw,
    "momentum": optim.momentum,
    "rmsprop": optim.rmsprop,
    "adam, decay": lambda lr, **o: optim.adam(lr, weight_decay=1e-3, **o),
}
MLP = [(512, 13), (256, 512), (64, 256), (16, 64), (512, 367), (256, 512), (1, 256)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["modes", "rows", "dense"])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=100)
    chosen = parser.parse_args()
    {"modes": modes, "rows": row_updates, "dense": dense_updates}[chosen.what](
        chosen.rows, chosen.steps
    )


def modes(rows: int, steps: int) -> None:
    """Seconds of the optimizer alone, and whether exact is dense."""
    lr = 0.01 * optim.warmup(max(steps // 15, 1)) * optim.cosine(steps)
    print(f"{rows:,} rows x {WIDTH}, {steps} steps of {IDS} ids: ms a step, then the flush in ms")
    for name, make in FORMULAS.items():
        weights, line = {}, f"{name:12}"
        for mode in ("lazy", "exact", "dense"):
            weights[mode], step_ms, flush_ms = train(make(lr, mode=mode), rows, steps)
            line += f"  {mode} {step_ms:8.3f}"
            line += f" + flush {flush_ms:7.1f}" if mode == "exact" else ""
        same = (weights["exact"].view("u4") == weights["dense"].view("u4")).all()
        off = np.abs(weights["lazy"] - weights["dense"]).max()
        print(f"{line}  exact is dense: {same}, lazy off by {off:.2g}", flush=True)


def train(optimizer: optim.Optimizer, rows: int, steps: int) -> tuple[np.ndarray, float, float]:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((rows, WIDTH), dtype="f4")
    params = {"t": as_tensor(weight)}
    state = optimizer.init(params, {"t": {"t": slice(0, rows)}})
    times = []
    for _ in range(steps):
        ids = (rng.zipf(1.2, IDS) - 1) % rows
        noise = rng.standard_normal((IDS, WIDTH))
        begin = time.perf_counter()
        optimizer.catch_up_(params, {"t": ids}, state)
        caught = time.perf_counter() - begin
        values = (0.1 * as_numpy(params["t"])[ids] + 0.01 * noise).astype("f4")
        gradient = RowSparse.from_numpy(ids, values, rows)
        begin = time.perf_counter()
        optimizer.apply_(params, {"t": gradient}, state)
        times.append(caught + time.perf_counter() - begin)
        if len(times) == 1:
            optimizer.flush_(params, state)  # compiles it; results do not change
    begin = time.perf_counter()
    optimizer.flush_(params, state)
    flush = time.perf_counter() - begin
    return as_numpy(params["t"]).copy(), 1e3 * float(np.mean(times[2:])), 1e3 * flush


def row_updates(rows: int, steps: int) -> None:
    """Time of one `apply_`, coalescing and the check for NaN included."""
    rng = np.random.default_rng(0)
    weight = runtime.zeros((rows, 16), "float32")
    batches = [large_batch(rng, rows) for _ in range(8)]
    for make in (optim.sgd, optim.adagrad, optim.rowwise_adagrad, optim.adam):
        optimizer = make(0.01)
        state = optimizer.init({"t": weight})
        times = []
        for step in range(max(steps, 20)):
            begin = time.perf_counter()
            optimizer.apply_({"t": weight}, {"t": batches[step % 8]}, state)
            times.append(1e3 * (time.perf_counter() - begin))
        low, middle, high = np.percentile(times[8:], [10, 50, 90])
        name = optimizer.formula.name
        print(f"{name:16} {rows:,} rows: {middle:.2f} ms ({low:.2f} to {high:.2f})", flush=True)


def large_batch(rng: np.random.Generator, rows: int) -> RowSparse:
    """A batch of 2,048 rows and 26 tables, half of the rows in the largest ones."""
    ends = np.cumsum(rows * np.array([0.3, 0.25, 0.2, 0.15] + 22 * [0.1 / 22])).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    ids = np.stack([s + skewed(rng, e - s) for s, e in zip(starts, ends, strict=True)], axis=1)
    values = rng.standard_normal((ids.size, 16), dtype="f4")
    return RowSparse.from_numpy(ids.ravel().astype(np.int32), values, rows)


def skewed(rng: np.random.Generator, rows: int, exponent: float = 1.05) -> np.ndarray:
    """2,048 ids by a power law, scattered over the table."""
    rest = 1 - exponent
    rank = (1 + rng.random(2048) * ((rows + 1) ** rest - 1)) ** (1 / rest)
    return (np.minimum(rank.astype(np.int64) - 1, rows - 1) * 2654435761) % rows


def dense_updates(_: int, steps: int) -> None:
    """All dense parameters of a DLRM: a kernel each, and one program that updates all in place."""
    shapes = [shape for out, given in MLP for shape in ((out, given), (out,))]
    optimizer = optim.adagrad(0.01)
    arrays = {f"p{i}": as_tensor(np.ones(s, "f4")) for i, s in enumerate(shapes)}
    gradients = {name: as_tensor(as_numpy(array) * 1e-3) for name, array in arrays.items()}
    state = optimizer.init(arrays)
    print(
        f"{sum(as_numpy(a).size for a in arrays.values()):,} elements in {len(arrays)} parameters"
    )
    apart = median(lambda: optimizer.apply_(arrays, gradients, state), steps)
    program = one_program(optimizer, arrays)
    leaves = [tensor for n in arrays for tensor in (gradients[n], arrays[n], state[n]["sum"])]
    together = median(lambda: program(*leaves), steps)
    print(f"a kernel each, checks included {apart:.3f} ms, one program {together:.3f} ms")


def one_program(optimizer: optim.Optimizer, arrays: dict[str, runtime.NDArray]) -> Callable:
    """What inlining would leave of the dense updates: one call, no checks, numbers compiled in."""
    builder = relax.BlockBuilder()
    kernel = dense_update_kernel(optimizer._rule.recipe, "float32")
    update = builder.add_func(kernel, "update")
    sizes = [int(np.prod(array.shape)) for array in arrays.values()]
    names = [f"{part}{i}" for i in range(len(sizes)) for part in "gws"]
    args = [
        relax.Var(name, relax.TensorType((1, sizes[i // 3]), "float32"))
        for i, name in enumerate(names)
    ]
    numbers = [tirx.const(x, "float32") for x in optimizer._rule.numbers(1)]
    with builder.function("update_all", args):
        for i, size in enumerate(sizes):
            span = [tirx.const(0, "int64"), tirx.const(size, "int64")]
            numbers_here = [relax.prim_value(x) for x in (*numbers, *span)]
            builder.emit(relax.Call(update, [*args[3 * i : 3 * i + 3], *numbers_here]))
        builder.emit_func_output(relax.Tuple([]))
    machine = runtime.build_relax(builder.get(), runtime.host_target())
    flat = machine["update_all"]
    return lambda *leaves: flat(*(t._create_view((1, int(np.prod(t.shape)))) for t in leaves))


def median(work: Callable[[], object], steps: int) -> float:
    times = []
    for _ in range(max(steps, 20)):
        begin = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - begin))
    return float(np.median(times[5:]))


if __name__ == "__main__":
    main()
