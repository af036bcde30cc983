# SPDX-License-Identifier: Apache-2.0
"""Bytes by formula: what an update must move at least, and what memory it needs.

Memory is that of a step beside table, slots and the cotangent, which all arms are given.
Traffic counts every array once for reading and once for writing; ids count, caches do not. It is
the least that the algorithm allows, so a bandwidth computed from it is never flattering.
"""

from __future__ import annotations

from sparsetrain.compare.case import FLOAT_BYTES, Case
from sparsetrain.optim import OPTIMIZERS, Formula

_ID_BYTES = 4
_PLAN_BYTES = 28  # of an id: sort keys and positions twice, order, row and offset, 4 bytes each


def formula_of(case: Case) -> Formula:
    """The formula of a case, with its slots."""
    return OPTIMIZERS[case.formula](0.01).formula


def state_bytes(case: Case) -> int:
    """Bytes of an optimizer's slots for the whole table."""
    return case.rows * _slot_row_bytes(case)


def sparse_traffic(case: Case, unique: float) -> float:
    """Touched rows and their slots both ways, the gradient's value rows, the ids."""
    rows = 2 * unique * (case.row_bytes + _slot_row_bytes(case))
    return rows + case.lookups * (case.row_bytes + _ID_BYTES)


def dense_traffic(case: Case, unique: float) -> float:
    """All rows and slots both ways and the gradient once; adding to it and clearing it."""
    table = case.rows * (3 * case.row_bytes + 2 * _slot_row_bytes(case))
    return table + 3 * unique * case.row_bytes + case.lookups * (case.row_bytes + _ID_BYTES)


def stock_traffic(case: Case, unique: float) -> float:
    """As `dense_traffic`, and the zeros of a new gradient are written in each step."""
    return dense_traffic(case, unique) + case.table_bytes


def sparse_memory(case: Case) -> int:
    """The ids and the plan to coalesce them."""
    return case.lookups * (_ID_BYTES + _PLAN_BYTES)


def dense_memory(case: Case) -> int:
    """A gradient as large as the table, which is kept, and the ids parted for it."""
    return case.table_bytes + case.lookups * (_ID_BYTES + _PLAN_BYTES)


def stock_memory(case: Case) -> int:
    """Gradient, product with the learning rate, and new weights and slots beside the old ones."""
    new = 1 + sum(slot.per == "element" for slot in formula_of(case).slots)
    products = {"adam": 4}.get(case.formula, 1)
    expanded = case.lookups * case.row_bytes if case.pooling > 1 else 0
    return (1 + products + new) * case.table_bytes + expanded


def _slot_row_bytes(case: Case) -> int:
    """Bytes of all slots of one row."""
    sizes = {"element": case.row_bytes, "row": FLOAT_BYTES}
    return sum(sizes[slot.per] for slot in formula_of(case).slots)
