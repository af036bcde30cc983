# SPDX-License-Identifier: Apache-2.0
"""The update of one table alone, as comparisons time it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparsetrain import runtime
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.rule import Mode, Update
from sparsetrain.sparse_tensor import RowSparse


class TableUpdate:
    """A table and its optimizer state, to which row-sparse gradients are applied.

    Parameters
    ----------
    optimizer : Optimizer
        Formula and numbers.
    weight : Tensor or array (V, D)
        A tensor is updated in place, an array is copied.
    update : {"sparse", "dense"}
        Whether touched rows are written, or every row.
    mode : {"lazy", "exact", "dense"}, optional
        In place of the optimizer's: ``"dense"`` for the dense update by a formula that moves rows
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
        self.optimizer = replace(optimizer, update=update, mode=mode or optimizer.mode)
        self.weight = runtime.as_tensor(weight)
        self._params = {"table": self.weight}
        rows = {"table": slice(0, int(self.weight.shape[0]))}
        self.state = self.optimizer.init(self._params, {"table": rows})

    def __call__(self, gradient: RowSparse) -> None:
        """Take one step; in exact mode rows are caught up first, as before a lookup."""
        if self.state.histories:
            self.optimizer.catch_up_(self._params, {"table": gradient.indices}, self.state)
        self.optimizer.apply_(self._params, {"table": gradient}, self.state)
