# SPDX-License-Identifier: Apache-2.0
"""Recorder of a step's kernels; it does not change results.

There are two kinds of kernels. A program's kernels run inside TVM's virtual machine, which can be
instrumented; single kernels (coalescing, the optimizer's) run through `Kernel`, which can be
observed. The instrumentation's calls to Python take longer than a small kernel and slow the code
between kernels. So two kinds of steps alternate: one times single kernels and the whole step, the
other times the program's kernels.

On a device a call returns before its kernel ends. So each launch waits for the previous kernel, to
measure one kernel at a time; such a step takes longer than an unprofiled step.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import prod, sqrt
from statistics import median
from threading import get_ident
from typing import Any

from sparsetrain import runtime
from sparsetrain.backend import CPU_MEMORY
from sparsetrain.data import Batch
from sparsetrain.runtime.kernel_names import plain_name
from sparsetrain.runtime.tensors import intercept_kernels
from sparsetrain.system.argument_checks import require_int
from sparsetrain.training.profile.result import Entry, StepProfile, kernel_times, longest_first
from sparsetrain.training.step import Loss, loss_inputs


class Recorder:
    """Records the kernel calls of steps.

    Parameters
    ----------
    touched : mapping of int to int
        Number of rows of a storage -> number of rows that a step looks up in it, including
        duplicates. For an argument with that many rows, only the looked-up rows count as moved.
    wait : callable
        The backend's function that waits for all launched kernels. On a CPU there is nothing to
        wait for.
    """

    def __init__(self, touched: Mapping[int, int], wait: Callable[[], None] = lambda: None) -> None:
        self.touched, self._wait = touched, wait
        self.inside = 0.0  # total seconds in single kernels
        self._kernels: defaultdict[str, Entry] = defaultdict(Entry)
        self._began = 0.0
        self._thread = get_ident()  # other threads prepare batches

    def single_of(self, step: Callable[[], Any]) -> tuple[float, dict[str, Entry]]:
        """Return the seconds of a step, and its single kernels."""
        self._kernels = defaultdict(Entry)
        with intercept_kernels(self._call):
            self._wait()
            began = time.perf_counter()
            step()
            self._wait()
            seconds = time.perf_counter() - began
        return seconds, self._kernels

    def program_of(self, step: Callable[[], Any], machines: Sequence[Any]) -> dict[str, Entry]:
        """Return the kernels of the programs that a step runs in virtual machines."""
        self._kernels = defaultdict(Entry)
        try:
            for machine in machines:
                machine.set_instrument(self._instrument)
            step()
        finally:
            for machine in machines:
                machine.set_instrument(None)
        return self._kernels

    def _call(self, name: str, kernel: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if get_ident() != self._thread:
            return kernel(*args)
        self._wait()  # wait for kernels of an earlier program
        began = time.perf_counter()
        result = kernel(*args)
        self._wait()
        seconds = time.perf_counter() - began
        self.inside += seconds
        self._count(name, seconds, args)
        return result

    def _instrument(self, _function: Any, name: str, before: bool, _result: Any, *args: Any) -> int:
        self._wait()
        name = plain_name(name)
        if before:
            self._began = time.perf_counter()
        elif "." not in name and name not in _NO_KERNELS:  # names with a dot are runtime functions
            self._count(name, time.perf_counter() - self._began, args)
        return 0

    def _count(self, name: str, seconds: float, args: Iterable[Any]) -> None:
        arrays = [a for a in args if isinstance(a, runtime.NDArray)]
        shapes = [tuple(map(int, array.shape)) for array in arrays]
        product = _product_size(shapes) if "matmul" in name else None
        entry = self._kernels[in_words(name, product)]
        entry.calls += 1
        entry.seconds += seconds
        entry.flops += 2 * prod(product) if product else 0
        entry.bytes += sum(
            _itemsize(array) * self._moved(shape)
            for array, shape in zip(arrays, shapes, strict=True)
        )

    def _moved(self, shape: tuple[int, ...]) -> int:
        if shape and shape[0] in self.touched:
            return self.touched[shape[0]] * prod(shape[1:])
        return prod(shape)


# Calls in the virtual machine that compute sizes, not data.
_NO_KERNELS = frozenset({"shape_func", ""})


def _itemsize(array: Any) -> int:
    dtype = array.dtype
    return int(dtype.bits * dtype.lanes // 8)


def _product_size(shapes: list[tuple[int, ...]]) -> tuple[int, int, int] | None:
    """Return M, N and K of the matrix product that a kernel writes to its last argument.

    The three matrices have MK, KN and MN elements, transposed or not. The two operands are adjacent
    arguments; operands of fused operators may precede or follow.
    """
    if len(shapes) < 3 or len(shapes[-1]) != 2 or not prod(shapes[-1]):
        return None
    rows, columns = shapes[-1]
    pairs = list(pairwise(shapes[:-1]))
    a, b = next((p for p in reversed(pairs) if _are_operands(*p, (rows, columns))), pairs[0])
    return rows, columns, round(sqrt(prod(a) * prod(b) / (rows * columns)))


def _are_operands(a: tuple[int, ...], b: tuple[int, ...], result: tuple[int, int]) -> bool:
    """Return whether two matrices, transposed or not, have a product of the result's shape."""
    if len(a) != 2 or len(b) != 2:
        return False
    return any(
        sorted((m, n)) == sorted(result)
        for m, left in (a, a[::-1])
        for n, right in (b, b[::-1])
        if left == right
    )


# Names are replaced in this order, so longer names precede their parts.
_WORDS = (
    ("matmul nt", "x W\N{MODIFIER LETTER CAPITAL T}"),  # forward: weights are (out, in)
    ("matmul tn", "x\N{MODIFIER LETTER CAPITAL T} y"),  # weight gradient
    ("matmul", "x W"),  # input gradient
    ("less equal where", "relu mask"),
    ("collapse sum", "sums of columns"),
    ("lookup", "lookup of rows"),
)


def in_words(name: str, product: tuple[int, int, int] | None = None) -> str:
    """Describe a kernel in words; a matrix product with its rows x columns x summed length."""
    parts = [re.sub(r"\d+$", "", part) for part in name.removeprefix("fused_").split("_")]
    text = " ".join(part for part in parts if part)
    for symbol, words in _WORDS:
        text = text.replace(symbol, words + "," if text != symbol else words)
    text = text.strip(" ,").replace(", add relu", ", add, relu")
    size = " x ".join(map(str, product or ()))
    return f"{size}: {text}" if size else text


WARM, RECORDED = 5, 40  # numbers of steps; half of the recorded steps time the kernels of programs


class StepProfiler:
    """Records a trainer's steps, except for the first `WARM` steps.

    Parameters
    ----------
    trainer : Trainer
    steps : int
        Number of steps to record, at least 2.
    """

    def __init__(self, trainer: Any, steps: int = RECORDED) -> None:
        self._trainer, self._warm, self._left = trainer, WARM, max(2, steps)
        self._backend = trainer.backend
        self._rows = 0
        self._spared = 0
        self._seconds: list[float] = []
        self._single: list[dict[str, Entry]] = []
        self._program: list[dict[str, Entry]] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Route the trainer's steps through `step` while the block runs."""
        self._trainer.step_hook = self.step
        try:
            yield
        finally:
            self._trainer.step_hook = None

    def step(self, run: Callable[[], Loss], batch: Batch) -> Loss:
        """Call `run`, which trains on `batch`, and return its loss."""
        if self._warm:
            self._warm -= 1
            return run()
        # Times of a smaller last batch would not be comparable.
        if not self._left or (self._rows and len(batch) != self._rows):
            return run()
        self._rows, self._left = len(batch), self._left - 1
        return self._record(run, Recorder(self._lookups(batch), self._backend.synchronize))

    def _lookups(self, batch: Batch) -> dict[int, int]:
        """Map each storage's number of rows to the number of rows that `batch` looks up."""
        params = self._trainer.params.weights
        inputs = loss_inputs(self._trainer, batch)
        self._spared = self._trainer.program.flops_spared(inputs)
        rows_read = self._trainer.model.rows_read(inputs)
        return {int(params[name].shape[0]): int(rows.size) for name, rows in rows_read.items()}

    def _record(self, run: Callable[[], Loss], recorder: Recorder) -> Loss:
        results: list[Loss] = []

        def keep() -> None:
            results.append(run())

        if len(self._seconds) > len(self._program):
            self._program.append(recorder.program_of(keep, self._trainer.training_step.machines))
        else:
            seconds, kernels = recorder.single_of(keep)
            self._seconds.append(seconds)
            self._single.append(kernels)
        return results[0]

    def result(self) -> StepProfile | None:
        """Return the recorded profile, or None if there were too few steps."""
        if not self._program:
            return None
        kernels = kernel_times(self._program) + kernel_times(self._single)
        return StepProfile(
            self._rows,
            len(self._seconds) + len(self._program),
            runtime.num_threads(),
            median(self._seconds),
            longest_first(kernels),
            device="" if self._backend.memory == CPU_MEMORY else self._backend.kind,
            spared=self._spared,
        )


def profile(trainer: Any, batch: Batch, *, steps: int = RECORDED) -> StepProfile:
    """Profile a training step: ``print(trainer.profile(batch))``.

    Afterwards the trainer has exactly the same state as before; meanwhile there is a copy of its
    weights and slots. The rows of `batch` stay in the CPU caches from step to step; ``fit(...,
    profile=True)`` instead records steps over new rows. On CUDA, launches wait for each other, so a
    profiled step takes longer.

    Parameters
    ----------
    batch : Batch
        A batch with labels.
    steps : int
        Number of steps to record after a warm-up, at least 2.

    Returns
    -------
    StepProfile
        Per kernel: name, calls, seconds, GFLOP/s or GB/s; and the time outside kernels.

    Raises
    ------
    ConfigError
        If `steps` is below 2.
    NumericalError
        As in `step`.
    """
    profiler = StepProfiler(trainer, require_int("profile: steps", steps, 2))
    with trainer.snapshot() as state:  # threads that write weights wait until the end
        arrays = {name: array.copy() for name, array in state.arrays.items()}
        applied = trainer.applied
        try:
            with profiler.recording():
                for _ in range(WARM + steps):
                    float(trainer.step(batch))
        finally:
            trainer.load_state_dict(arrays, state.counts)
            trainer.applied = applied
    result = profiler.result()
    assert result is not None
    return result
