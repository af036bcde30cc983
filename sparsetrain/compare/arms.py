# SPDX-License-Identifier: Apache-2.0
"""The compared ways to update one embedding table, called arms.

All arms start from the same ids and the cotangent of the looked-up rows, and end with an updated
table. `Arm.memory` computes the bytes that a step needs besides table, slots and cotangent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from sparsetrain import runtime
from sparsetrain.compare.case import Case
from sparsetrain.compare.stock import OPTIMIZERS as STOCK_OPTIMIZERS
from sparsetrain.compare.stock import stock_update
from sparsetrain.optim import OPTIMIZERS, Formula
from sparsetrain.optim.update_rule import Mode, Update
from sparsetrain.sparse_tensor import RowSparse

LEARNING_RATE = 0.01
_PLAN_BYTES = 32  # per id: the id, two copies of sort keys and positions, order, row and offset

Step = Callable[[RowSparse], runtime.NDArray]


class Arm(NamedTuple):
    """One way to update a table."""

    dense: bool  # whether its cost grows with the rows of the table
    prepare: Callable[[Case], Step]  # returns a function that takes a step and returns the table
    memory: Callable[[Case], int]  # bytes that a step needs on top of table, slots and cotangent
    unsupported: Callable[[Case], str | None] = lambda case: None  # why it cannot run a case
    of_sweeps: bool = False  # whether only sweeps measure it, not a user's own tables

    def peak_bytes(self, case: Case) -> int:
        """Return the bytes that a measurement holds at its peak."""
        sizes = {"element": case.table_bytes, "row": case.table_bytes // case.width}
        slots = sum(sizes[slot.per] for slot in _formula(case).slots)
        return case.table_bytes + slots + self.memory(case)


def _formula(case: Case) -> Formula:
    return OPTIMIZERS[case.formula](LEARNING_RATE).formula


def _new_table(case: Case) -> runtime.NDArray:
    return runtime.zeros((case.rows, case.width), "float32", f"a table of {case.rows:,} rows")


def _update(update: Update, mode: Mode, case: Case) -> Step:
    """Prepare steps on one table; in exact mode, a step first catches rows up, as for a lookup."""
    optimizer = replace(OPTIMIZERS[case.formula](LEARNING_RATE), update=update, mode=mode)
    params = {"table": _new_table(case)}
    state = optimizer.init(params, {"table": {"table": slice(0, case.rows)}})

    def step(gradient: RowSparse) -> runtime.NDArray:
        optimizer.catch_up_(params, {"table": gradient.indices}, state)
        optimizer.apply_(params, {"table": gradient}, state)
        return params["table"]

    return step


def _sparse_memory(case: Case) -> int:
    """Return the bytes of the ids and of the plan that coalesces them."""
    return case.lookups * _PLAN_BYTES


def _dense_memory(case: Case) -> int:
    """Return the bytes of the dense gradient, kept between steps, and of the ids and their plan."""
    return case.table_bytes + _sparse_memory(case)


def _stock_memory(case: Case) -> int:
    """Return the bytes of the gradient, of temporaries, and of new copies of weights and slots."""
    copies = 1 + sum(slot.per == "element" for slot in _formula(case).slots)
    products = {"adam": 4}.get(case.formula, 1)
    return (1 + products + copies) * case.table_bytes


def _stock_unsupported(case: Case) -> str | None:
    known = case.formula in STOCK_OPTIMIZERS
    return None if known else f"TVM's relax.training has no {case.formula}"


def _exact_is_lazy(case: Case) -> str | None:
    if _formula(case).noop_on_zero_grad != "always":
        return None
    return f"{case.formula}: lazy mode is already exact, since a zero gradient changes nothing"


def _stock(case: Case) -> Step:
    return stock_update(case, _new_table(case))


ARMS = {
    "stock": Arm(True, _stock, _stock_memory, _stock_unsupported),
    "dense": Arm(True, partial(_update, "dense", "dense"), _dense_memory),
    "sparse": Arm(False, partial(_update, "sparse", "lazy"), _sparse_memory),
    "exact": Arm(False, partial(_update, "sparse", "exact"), _sparse_memory, _exact_is_lazy, True),
}
