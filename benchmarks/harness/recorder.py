# SPDX-License-Identifier: Apache-2.0
"""Where a step of ours spends its time: every kernel it calls, and what lies between kernels.

Compiled code enters the package by two doors of `sparsetrain.runtime`: `virtual_machine` runs
programs, and can be instrumented; `compile_kernel` makes single kernels, which can be wrapped. Both
doors are replaced before anything is built.

Steps of two kinds alternate. In one, the phases of a step and the single kernels are timed, which
costs next to nothing. In the other the virtual machine is instrumented, whose calls to Python take
longer than a small kernel does: only the times of its kernels are taken from it.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

from sparsetrain import runtime

STEP = "the rest of the step"


@dataclass
class Entry:
    """Sums over the calls of one kernel in a step."""

    calls: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0


class Recorder:
    """Collects the calls of a step.

    Parameters
    ----------
    table_rows : int
        Arguments with as many rows are tables: a kernel reads or writes `touched_rows` of them.
    touched_rows : int
        Rows that a step looks up, duplicates counted.
    """

    def __init__(self, table_rows: int, touched_rows: int) -> None:
        self.table_rows, self.touched_rows = table_rows, touched_rows
        self._clear()
        self.timing_phases = False
        self._machines: list[Any] = []
        self._inside = 0.0  # seconds in single kernels so far
        self._began = 0.0

    def open_doors(self) -> None:
        """Replace the two functions of `runtime` by ones that record what they make."""
        virtual_machine, compile_kernel = runtime.virtual_machine, runtime.compile_kernel

        def machine_recorded(*args: Any, **options: Any) -> Any:
            self._machines.append(virtual_machine(*args, **options))
            return self._machines[-1]

        def compile_recorded(*args: Any, **options: Any) -> Any:
            name = sys._getframe(1).f_code.co_name.strip("_")
            return self._wrapped(name, compile_kernel(*args, **options))

        runtime.virtual_machine, runtime.compile_kernel = machine_recorded, compile_recorded

    def phases_of(self, step: Callable[[], Any]) -> tuple[dict[str, float], dict[str, Entry]]:
        """Seconds of the phases of a step, without single kernels, and those kernels."""
        self._clear()
        self.timing_phases = True
        with self.phase(STEP):
            step()
        self.timing_phases = False
        return self._phases, self._kernels

    def program_of(self, step: Callable[[], Any]) -> dict[str, Entry]:
        """Kernels of the programs that a step runs."""
        self._clear()
        for machine in self._machines:
            machine.set_instrument(self._instrument)
        step()
        for machine in self._machines:
            machine.set_instrument(None)
        return self._kernels

    def _clear(self) -> None:
        self._kernels: defaultdict[str, Entry] = defaultdict(Entry)
        self._phases: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what passes inside, but for single kernels, as `name`."""
        began, inside = time.perf_counter(), self._inside
        yield
        if self.timing_phases:
            elapsed = time.perf_counter() - began
            self._phases[name] += elapsed - (self._inside - inside)

    def _wrapped(self, name: str, kernel: Callable) -> Callable:
        def call(*args: Any) -> Any:
            began = time.perf_counter()
            result = kernel(*args)
            if self.timing_phases:
                seconds = time.perf_counter() - began
                self._inside += seconds
                self._count(self._kernels[name], seconds, args, product=False)
            return result

        return call

    def _instrument(self, _function: Any, name: str, before: bool, _result: Any, *args: Any) -> int:
        if before:
            self._began = time.perf_counter()
        elif not name.startswith("vm."):
            seconds = time.perf_counter() - self._began
            self._count(self._kernels[name], seconds, args, product="matmul" in name)
        return 0

    def _count(self, entry: Entry, seconds: float, args: Iterable[Any], product: bool) -> None:
        entry.calls += 1
        entry.seconds += seconds
        shapes = [tuple(map(int, a.shape)) for a in args if isinstance(a, runtime.NDArray)]
        entry.flops += _product_flops(shapes) if product else 0
        entry.bytes += sum(4 * self._touched(shape) for shape in shapes)

    def _touched(self, shape: tuple[int, ...]) -> int:
        if shape and shape[0] == self.table_rows:
            return self.touched_rows * prod(shape[1:])
        return prod(shape)


def _product_flops(shapes: list[tuple[int, ...]]) -> float:
    """Of a product of the first two arguments into the last, whichever are transposed.

    The sizes are MK, KN and MN, so the root of their product is MNK.
    """
    return 2 * sqrt(prod(shapes[0]) * prod(shapes[1]) * prod(shapes[-1])) if shapes else 0
