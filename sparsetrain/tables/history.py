# SPDX-License-Identifier: Apache-2.0
"""`History`: the numbers of each step that rows may have missed, from which they are replayed."""

from __future__ import annotations

from math import log

import numpy as np

from sparsetrain import runtime
from sparsetrain.errors import CheckpointError
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.tables.formula import KernelSpec

SMALLEST = 1e-300  # in place of 0, which has no logarithm


def columns(spec: KernelSpec, dtype: str) -> int:
    """Return K, the columns of a history: a step's numbers, then summed logs of `decay_numbers`.

    In closed mode, the product of the `transition` matrices of all later steps replaces the
    logarithms. For a half-precision `dtype` the two keys of the step's random bits come last.
    """
    beyond = spec.order**2 if spec.closed else len(decay_numbers(spec))
    return len(spec.numbers) + beyond + 2 * format_of(dtype).rounded


def decay_numbers(spec: KernelSpec) -> tuple[str, ...]:
    """Return the names of the numbers that decay weight and slots, for `max_replayed_steps`."""
    weight = ("keep",) if spec.decay == "decoupled" else ()
    return weight + tuple(name for name in spec.formula.slot_decay if name is not None)


class History:
    """Numbers of the steps ``base + 1 .. now``.

    Row t of `tensor` holds the numbers of step ``base + t``; at step `base` all table rows are
    current. Cost: K float64 a step until `restart`, which a flush calls: 80 bytes a step for Adam.

    Parameters
    ----------
    spec : KernelSpec
        Determines the columns.
    now : int
        Number of steps before the first recorded one.
    dtype : str
        Dtype of the parameter.
    """

    def __init__(self, spec: KernelSpec, now: int = 0, dtype: str = "float32") -> None:
        self.spec = spec
        self.base = self.now = now
        shape = (64, max(1, columns(spec, dtype)))
        self.tensor = runtime.zeros(shape, "float64", "a history of steps")
        if spec.closed:
            first = len(spec.numbers)
            self._view()[0, first : first + spec.order**2] = np.eye(spec.order).ravel()

    def append(self, numbers: tuple[float, ...], keys: tuple[int, ...] = ()) -> None:
        """Record a step; `keys` are the keys of its random bits for a half-precision table."""
        self.now += 1
        view = self._view()
        if self.missed == len(view):
            view = self._grow()
        known = dict(zip(self.spec.numbers, numbers, strict=True))
        row, count = self.missed, len(numbers)
        view[row, :count] = numbers
        view[row, view.shape[1] - len(keys) :] = keys
        if self.spec.closed:
            order = self.spec.order
            products = view[: row + 1, count : count + order**2]
            step = self.spec.transition(numbers)
            products[:row] = (step @ products[:row].reshape(row, order, order)).reshape(row, -1)
            products[row] = np.eye(order).ravel()
            return
        logs = [log(max(known[name], SMALLEST)) for name in decay_numbers(self.spec)]
        fading = slice(count, count + len(logs))
        view[row, fading] = view[row - 1, fading] + logs

    @property
    def missed(self) -> int:
        """The most steps that a row may have missed."""
        return self.now - self.base

    def saved(self) -> np.ndarray:
        """Return a copy of the rows of `tensor` so far, from which `go_on_` continues."""
        return self._view()[: self.missed + 1].copy()

    def go_on_(self, base: int, saved: np.ndarray) -> None:
        """Continue from a copy of a saved history and its `base`.

        Raises
        ------
        CheckpointError
            If it is not a saved history of this kind.
        """
        shape = (len(saved), self.tensor.shape[1])
        kept = base >= 0 and len(saved) and base + len(saved) <= 2**31
        if not kept or (saved.shape, saved.dtype) != (shape, np.float64):
            raise CheckpointError(
                "the steps that rows missed are saved with a wrong shape or dtype"
            )
        if not np.isfinite(saved).all():
            raise CheckpointError("the steps that rows missed hold numbers that are not finite")
        self.tensor = runtime.zeros((2 * len(saved), shape[1]), "float64", "a history of steps")
        self._view()[: len(saved)] = saved
        self.base, self.now = base, base + len(saved) - 1

    def restart(self, now: int | None = None) -> None:
        """Drop all steps; all rows must be current."""
        view = self._view()
        view[0] = view[self.missed]
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
