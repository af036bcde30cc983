# SPDX-License-Identifier: Apache-2.0
"""Lookups, row updates and plans on a CUDA device."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import sparsetrain as st
from harness.gpu_timing import copying_rate, kernels_of, on_device, scaled, seconds_of, torch_on_gpu
from sparsetrain import runtime
from sparsetrain.backends.cuda import device as gpu
from sparsetrain.backends.cuda.kernel_table import lookup_kernel
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.sparse_tensor.coalesce import make_plan

FLAT_ROWS = (10**5, 10**6, 10**7, 10**8)
FLAT_LOOKUPS = 53_248  # 2,048 x 26
FLAT_CALLS = 100  # of 0.2 ms, in which the host has its part
FLAT_TURNS = 15
CALLS = 20


def measure_rows(rows: int, width: int, lookups: int) -> dict[str, Any]:
    """Lookup and row update: bytes that must move over their time, as shares of a copy's rate."""
    copying = copying_rate()
    update, unique = _update(rows, width, lookups)
    seconds = seconds_of(update, CALLS)
    # Values in; weight and slot of each touched row in and out.
    moved = 4 * width * (lookups + 4 * unique)
    rates = {
        "copy": copying,
        "lookup": _lookup_rate(rows, width, lookups),
        "update": moved / seconds,
    }
    torch = _torch_seconds(rows, width, lookups)
    if torch is not None:
        rates["torch lookup"] = lookups * (4 + 2 * 4 * width) / torch["lookup"]
        rates["torch update"] = moved / torch["update"]
    shares = {name: rate / copying for name, rate in rates.items()}
    return {
        "width": width,
        "lookups": lookups,
        "unique": unique,
        "update_ms": seconds * 1e3,
        "GB_per_s": scaled(rates, 1e-9),
        "share_of_copy": shares,
        "kernels": kernels_of(update, CALLS),
    }


def measure_flat(width: int) -> dict[str, Any]:
    """Milliseconds of an update of the same number of rows of ever larger tables.

    Medians of turns: what disturbs the host for a while then disturbs every size.
    """
    updates = {rows: _update(rows, width, FLAT_LOOKUPS)[0] for rows in FLAT_ROWS}
    turns: dict[int, list[float]] = {rows: [] for rows in FLAT_ROWS}
    for _ in range(FLAT_TURNS):
        for rows, update in updates.items():
            turns[rows].append(seconds_of(update, FLAT_CALLS))
    times = {rows: median(taken) for rows, taken in turns.items()}
    spread = max(times.values()) / min(times.values()) - 1
    return {
        "width": width,
        "update_ms": scaled(times, 1e3),
        "spread": spread,
        "turns_ms": {str(rows): [s * 1e3 for s in taken] for rows, taken in turns.items()},
        "kernels": {rows: kernels_of(update, CALLS) for rows, update in updates.items()},
    }


def measure_plan(rows: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Milliseconds of a plan: sorted by the device, and by one thread of the host."""
    found, kernels = {}, dict[str, Any]()
    for lookups in sizes:
        host = [runtime.as_tensor(ids) for ids in _ids(rows, lookups)]
        there = [on_device(runtime.as_numpy(ids)) for ids in host]
        on_gpu = partial(_plan, there, rows)
        device, kernels[str(lookups)] = seconds_of(on_gpu, CALLS), kernels_of(on_gpu, CALLS)
        taken = _host_seconds(lambda n, ids=host: make_plan(ids[n % 4], rows, parallel=False))
        found[str(lookups)] = {"device": device * 1e3, "host": taken * 1e3}
    return {"rows": rows, "plan_ms": found, "kernels": kernels}


def _plan(indices: list[Any], rows: int, number: int) -> None:
    make_plan(indices[number % len(indices)], rows)


def _lookup_rate(rows: int, width: int, lookups: int) -> float:
    kernel = compile_kernel(lookup_kernel(width, "float32", "int32"), gpu.target())
    table = on_device(np.ones((rows, width), np.float32))
    ids = [on_device(each) for each in _ids(rows, lookups)]
    out = on_device(np.zeros((lookups, width), np.float32))
    seconds = seconds_of(lambda number: kernel(table, ids[number % 4], out), CALLS)
    return lookups * (4 + 2 * 4 * width) / seconds


def _update(rows: int, width: int, lookups: int) -> tuple[Callable[[int], None], int]:
    """Sort, sums and Adagrad's update of random rows, the wait for their number too; how many."""
    rng = np.random.default_rng(0)
    params = {"table": on_device(np.ones((rows, width), np.float32))}
    optimizer = st.optim.adagrad(0.01)
    state = optimizer.init(params)
    values = on_device(rng.standard_normal((lookups, width), dtype=np.float32))
    indices = _ids(rows, lookups)
    gradients = [RowSparse(on_device(index), values, rows) for index in indices]

    def update(number: int) -> None:
        optimizer.apply_(params, {"table": gradients[number % 4]}, state)

    return update, len(np.unique(indices[0]))


def _torch_seconds(rows: int, width: int, lookups: int) -> dict[str, float] | None:
    """The same by PyTorch: `embedding`, and Adagrad of a sparse gradient; None without it."""
    torch = torch_on_gpu()
    if torch is None:
        return None
    table = torch.nn.Parameter(torch.ones(rows, width, device="cuda"))
    optimizer = torch.optim.Adagrad([table], 0.01)
    ids = [torch.from_numpy(each).cuda().long() for each in _ids(rows, lookups)]
    values = torch.randn(lookups, width, device="cuda")

    def update(number: int) -> None:
        table.grad = torch.sparse_coo_tensor(ids[number % 4][None], values, table.shape)
        optimizer.step()

    def lookup(number: int) -> Any:
        return torch.nn.functional.embedding(ids[number % 4], table.detach())

    return {
        name: _synchronized(torch.cuda.synchronize, run)
        for name, run in (("lookup", lookup), ("update", update))
    }


def _synchronized(synchronize: Callable[[], None], run: Callable[[int], Any]) -> float:
    """`seconds_of` for a library with streams of its own."""
    for number in range(3):
        run(number)
    synchronize()
    began = time.perf_counter()
    for number in range(CALLS):
        run(number)
    synchronize()
    return (time.perf_counter() - began) / CALLS


def _ids(rows: int, lookups: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, rows, lookups).astype(np.int32) for _ in range(4)]


def _host_seconds(run: Callable[[int], Any]) -> float:
    taken = []
    for number in range(CALLS):
        began = time.perf_counter()
        run(number)
        taken.append(time.perf_counter() - began)
    return median(taken)
