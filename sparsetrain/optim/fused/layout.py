# SPDX-License-Identifier: Apache-2.0
"""What decides a fused program: which updates it holds, and the arguments that they add to it.

Rules whose steps need more between gradients and writes (a norm over all gradients, rows that are
caught up, tables that are updated densely) are not fused: `layout_of` says so. The numbers of the
rules are among the arguments: with another learning rate the layout is the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparsetrain.optim.kernel_spec import KernelSpec
from sparsetrain.optim.param_groups import RowRange
from sparsetrain.optim.state import State
from sparsetrain.optim.together import MOST
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.sparse_tensor.column_plan import Columns, are_sorted_apart

# Parameter -> None for a dense gradient, or a traced row-sparse one; in the order of the results.
Structure = Mapping[str, RowSparse | None]
NUMBERS, KEYS, WORK, REPORT = ":numbers", ":keys", ":work", ":report"  # arguments of the program


class DenseUpdate(NamedTuple):
    """Parameters with dense gradients that one kernel updates by the rule of this number."""

    rule: int
    names: tuple[str, ...]


class RowsUpdate(NamedTuple):
    """Rows [first, end) of a parameter with a row-sparse gradient, by the rule of this number."""

    rule: int
    name: str
    first: int
    end: int


class Layout(NamedTuple):
    """What decides the code of the updates, whatever the numbers of the rules are.

    Parameters
    ----------
    specs : tuple of KernelSpec
        Of the rules, by number.
    dense, rows : tuple
        The updates.
    columns : tuple
        Of parameters whose ids can be sorted column by column: name and `Columns`.
    """

    specs: tuple[KernelSpec, ...]
    dense: tuple[DenseUpdate, ...]
    rows: tuple[RowsUpdate, ...]
    columns: tuple[tuple[str, Columns], ...] = ()


def layout_of(
    structure: Structure,
    shapes: Mapping[str, tuple[int, ...]],
    state: State,
    columns: Mapping[str, Columns] | None = None,
) -> Layout | None:
    """The updates of gradients of this structure, if they can be fused.

    Parameters
    ----------
    structure : mapping
        Parameter -> kind of its gradient.
    shapes : mapping of str to tuple of int
        Of the parameters.
    state : State
        Its ranges hold the rules.
    columns : mapping, optional
        Of parameters that are looked up by (B, F) ids: what each feature reads of them.
    """
    ranges = {name: state.ranges[name] for name in structure}
    if state.histories or not all(
        _can_fuse(template, shapes[name], ranges[name]) for name, template in structure.items()
    ):
        return None
    rules = state.rules(structure)
    alike: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    rows = []
    for name, template in structure.items():
        numbers = [rules.index(part.rule) for part in ranges[name]]
        if template is None:
            alike[numbers[0], state.dtypes[name]].append(name)
            continue
        parts = zip(numbers, ranges[name], strict=True)
        rows += [RowsUpdate(number, name, part.first, part.end) for number, part in parts]
    dense = [
        DenseUpdate(number, tuple(names[start : start + MOST]))
        for (number, _), names in alike.items()
        for start in range(0, len(names), MOST)
    ]
    apart = [each for each in (columns or {}).items() if are_sorted_apart(each[1])]
    return Layout(tuple(rule.spec for rule in rules), tuple(dense), tuple(rows), tuple(apart))


def _can_fuse(
    template: RowSparse | None, shape: tuple[int, ...], parts: Sequence[RowRange]
) -> bool:
    if template is None:
        return len(parts) == 1 and len(shape) > 0
    return len(shape) == 2 and not any(part.rule.dense for part in parts)


def report_size(structure: Structure) -> int:
    """Numbers in a report: whether all is well, arrays that are not finite, rows outside."""
    return 1 + 1 + len(structure) + len(tables_of(structure))


def tables_of(structure: Structure) -> list[str]:
    """Parameters with row-sparse gradients."""
    return [name for name, template in structure.items() if template is not None]


def slot_name(parameter: str, slot: str) -> str:
    """The argument that a slot becomes."""
    return f"{parameter}:{slot}"


def numbers_shape(layout: Layout) -> tuple[int, int]:
    """Rules, and the most scalars that a spec takes."""
    return len(layout.specs), max((len(r.scalars) for r in layout.specs), default=0) or 1


def strips_of(layout: Layout) -> int:
    """Strips that `WORK` must have at least."""
    return max((len(columns) for _, columns in layout.columns), default=1)
