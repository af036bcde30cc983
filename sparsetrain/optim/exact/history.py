# SPDX-License-Identifier: Apache-2.0
"""History of step numbers, from which rows of one parameter in exact mode are caught up.

Row t of the array holds the numbers of step ``base + t``; at row 0 all rows are current. Cost: K
float64 a step until `restart`, which a flush calls: 80 bytes a step for Adam. For a half-precision
table the numbers of a step include the keys of its random bits.
"""

from __future__ import annotations

from math import log

import numpy as np

from sparsetrain import runtime
from sparsetrain.optim.exact.catch_up import columns, decay_numbers
from sparsetrain.optim.kernel_spec import KernelSpec

SMALLEST = 1e-300  # a factor of 0 has no logarithm; this one decays as well


class History:
    """Numbers of the steps ``base + 1 .. now``.

    Parameters
    ----------
    spec : KernelSpec
        Decides what a step records.
    now : int
        Steps before the first that is recorded.
    dtype : str
        Of the parameter.
    """

    def __init__(self, spec: KernelSpec, now: int = 0, dtype: str = "float32") -> None:
        self.spec = spec
        self.base = self.now = now
        shape = (64, max(1, columns(spec, dtype)))
        self.tensor = runtime.zeros(shape, "float64", "a history of steps")

    def append(self, numbers: tuple[float, ...], keys: tuple[int, ...] = ()) -> None:
        """Record a step; `keys` are those of its random bits for a half-precision table."""
        self.now += 1
        view = self._view()
        if self.now - self.base == len(view):
            view = self._grow()
        known = dict(zip(self.spec.numbers, numbers, strict=True))
        row, count = self.now - self.base, len(numbers)
        view[row, :count] = numbers
        logs = [log(max(known[name], SMALLEST)) for name in decay_numbers(self.spec)]
        fading = slice(count, count + len(logs))
        view[row, fading] = view[row - 1, fading] + logs
        view[row, fading.stop : fading.stop + len(keys)] = keys

    def restart(self, now: int | None = None) -> None:
        """Forget the steps, when all rows are current."""
        view = self._view()
        view[0] = view[self.now - self.base]
        self.base = self.now = self.now if now is None else now

    def _view(self) -> np.ndarray:
        return runtime.as_numpy(self.tensor, writable=True)

    def _grow(self) -> np.ndarray:
        old = self._view()
        shape = (2 * len(old), old.shape[1])
        self.tensor = runtime.zeros(shape, "float64", "a history of steps")
        view = self._view()
        view[: len(old)] = old
        return view
