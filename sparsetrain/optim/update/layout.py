# SPDX-License-Identifier: Apache-2.0
"""Layout of an update: the kernel calls that a step makes, and the arguments they need.

A layout depends on the rules, shapes and kinds of gradients, not on numbers such as the learning
rate, which are arguments: changing them does not recompile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from sparsetrain.optim.state import State
from sparsetrain.optim.update.dense_kernel import MOST
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.tables.formula import KernelSpec

# Parameter -> None for a dense gradient, or a traced `RowSparse`; in the order of the results.
Structure = Mapping[str, RowSparse | None]
NUMBERS, NOISE_KEYS, SCRATCH, REPORT = (
    ":numbers",
    ":keys",
    ":work",
    ":report",
)  # arguments of the program


class DenseUpdate(NamedTuple):
    """Parameters with dense gradients that one kernel updates.

    Parameters
    ----------
    rule : int
        The rule's number.
    names : tuple of str
        The parameters.
    rows : tuple of int, optional
        The rows [first, end) of a single parameter; by default all rows of all parameters.
    """

    rule: int
    names: tuple[str, ...]
    rows: tuple[int, int] | None = None


class RowsUpdate(NamedTuple):
    """Rows [first, end) of a parameter with a row-sparse gradient.

    Parameters
    ----------
    rule : int
        The rule's number.
    name : str
        The parameter.
    first, end : int
        The rows.
    every_row : bool
        Whether rows without an entry are also updated, with a gradient of 0.
    numbered : bool
        Whether the random bits that round a row depend on its number in the whole parameter.
    """

    rule: int
    name: str
    first: int
    end: int
    every_row: bool = False
    numbered: bool = False


class Layout(NamedTuple):
    """Everything that determines the code of an update.

    Parameters
    ----------
    specs : tuple of KernelSpec
        For each rule, in the order of the numbers, what its kernels are generated from.
    dense, rows : tuple
        The kernel calls.
    """

    specs: tuple[KernelSpec, ...]
    dense: tuple[DenseUpdate, ...]
    rows: tuple[RowsUpdate, ...]


def layout_of(structure: Structure, state: State) -> Layout:
    """Lay out the update for gradients of this structure and the rules of a state."""
    rules = state.rules(structure)
    together: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    dense: list[DenseUpdate] = []
    rows: list[RowsUpdate] = []
    for name, template in structure.items():
        table = state.tables.table(name)
        parts = [(rules.index(part.rule), part) for part in table.ranges]
        if template is not None:
            table.require_last()
            rows += [
                RowsUpdate(rule, name, first, end, part.rule.dense, bool(table.keys(0, 0)))
                for number, (rule, part) in enumerate(parts)
                for first, end, *_ in table.spans(number)
            ]
        elif len(parts) == 1:
            together[parts[0][0], table.dtype].append(name)
        else:
            dense += [DenseUpdate(rule, (name,), (part.first, part.end)) for rule, part in parts]
    dense += [
        DenseUpdate(rule, tuple(names[start : start + MOST]))
        for (rule, _), names in together.items()
        for start in range(0, len(names), MOST)
    ]
    return Layout(tuple(rule.spec for rule in rules), tuple(dense), tuple(rows))


def report_size(structure: Structure) -> int:
    """Return a report's length: a verdict, flags for loss and gradients, a count per table."""
    return 1 + 1 + len(structure) + len(tables_of(structure))


def tables_of(structure: Structure) -> list[str]:
    """Return the parameters with row-sparse gradients."""
    return [name for name, template in structure.items() if template is not None]


def slot_name(parameter: str, slot: str) -> str:
    """Return the name of the argument that holds a slot."""
    return f"{parameter}:{slot}"


def numbers_shape(layout: Layout) -> tuple[int, int]:
    """Return the shape of `NUMBERS`: the number of rules, and the most scalars of a rule."""
    return len(layout.specs), max((len(r.scalars) for r in layout.specs), default=0) or 1


def keys_shape(layout: Layout) -> tuple[int, int]:
    """Return the shape of `NOISE_KEYS`.

    Each `RowsUpdate` has a row: three numbers for `Table.marks`, the first and the end of its rows
    and, if any update is `numbered`, the `begin` and `step` of its `Span`.
    """
    return max(1, len(layout.rows)), 7 if any(update.numbered for update in layout.rows) else 5
