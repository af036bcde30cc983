# SPDX-License-Identifier: Apache-2.0
"""`TableUpdate`: a single table and its updates, for comparisons and benchmarks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparsetrain import runtime
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import computed_in
from sparsetrain.optim.bound import Bound
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.rule import Mode, Update
from sparsetrain.optim.step import Step
from sparsetrain.sparse_tensor import RowSparse


class TableUpdate:
    """A table, its optimizer state, and one way to apply row-sparse gradients to it.

    A call is a step of `Optimizer.apply_` without the search for NaN, which would read all values
    again. Sparse: coalesce, then update touched rows in place. Dense: add the gradient
    into a buffer that is kept, update every row in place by one fused kernel, parallel over blocks
    of rows and vectorised, and clear the rows of the buffer that were added to.

    Parameters
    ----------
    optimizer : Optimizer
        Formula and numbers; without `clip_norm`.
    weight : Tensor or array (V, D)
        A tensor is updated where it is, an array is copied.
    update : {"sparse", "dense"}
        The path.
    mode : {"lazy", "exact", "dense"}, optional
        In place of the optimizer's: ``"dense"`` for the dense path of a formula that moves rows
        with a gradient of 0.

    Attributes
    ----------
    weight : Tensor (V, D)
        The table.
    state : State
        Its slots, by the name ``"table"``.

    Examples
    --------
    >>> step = TableUpdate(st.optim.adam(1e-3), weight, "dense", "dense")  # doctest: +SKIP
    >>> step(gradient)  # doctest: +SKIP
    """

    def __init__(
        self, optimizer: Optimizer, weight: Any, update: Update, mode: Mode | None = None
    ) -> None:
        self.optimizer = replace(
            optimizer, update=update, mode=mode or optimizer.mode, clip_norm=None
        )
        self.weight = runtime.as_tensor(weight)
        self._params = {"table": self.weight}
        rows = {"table": slice(0, int(self.weight.shape[0]))}
        self.state = self.optimizer.init(self._params, {"table": rows})
        self._checked: Bound | None = None
        self._kind = (*map(int, self.weight.shape), computed_in(str(self.weight.dtype)))

    def __call__(self, gradient: RowSparse) -> None:
        """Take one step."""
        step = self.prepare(gradient)
        try:
            step.finish_()
        except TypeError:
            self._check(gradient)  # in words that say what is wrong
            raise

    def prepare(self, gradient: RowSparse) -> Step:
        """All of a step that comes before its writes; its `finish_` makes them.

        In exact mode rows are caught up, as before a lookup; that writes.

        Raises
        ------
        ConfigError
            If the gradient has the shape of another table. One of another dtype may come as far as
            `finish_`, whose kernels refuse it.
        """
        if self.state.histories:
            self._check(gradient)
            self.optimizer.catch_up_(self._params, {"table": gradient.indices}, self.state)
        step = Step(self._params, {"table": gradient}, self.state, 1.0, None)
        if self.state.bound is not self._checked:  # a step binds anew if a gradient is another kind
            self._check(gradient)
            self._checked = self.state.bound
        return step

    def _check(self, gradient: RowSparse) -> None:
        found = gradient.num_rows, gradient.width, gradient.dtype
        if found != self._kind:
            raise ConfigError(f"table update: the gradient is {found}, the table {self._kind}")
