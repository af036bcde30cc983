# SPDX-License-Identifier: Apache-2.0
"""Shape constraints that are checked in each call of a program (PyTorch calls them guards).

The compiler cannot prove that ``len(offsets) - 1`` equals the batch size, or that two symbolic
extents of an operator's operands agree. If they do not, generated code reads out of bounds. So
every unproved constraint is checked in each call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer

from sparsetrain.ops.operand_shapes import (
    Pair,
    describe_call,
    format_shape,
    name_of,
    required_pairs,
    shape_of,
    size_of,
)

# A function that computes an expression from the values of its symbols.
Formula = Callable[[Mapping[str, int]], int]

_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: operator.mod,
    tirx.Div: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    tirx.Mod: lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
    tirx.Min: min,
    tirx.Max: max,
}


@dataclass(frozen=True)
class Demand:
    """A pair of extents that an operator assumes to be equal, or in order.

    Parameters
    ----------
    pair : Pair
        The two extents, and whether the first may be smaller.
    words : str
        A description of the operator and its operands, for error messages.
    is_size : bool
        Whether the extents are the numbers of elements before and after a reshape.
    """

    pair: Pair
    words: str
    is_size: bool = False

    @cached_property
    def _numbers(self) -> tuple[Formula, Formula]:
        """Both extents as Python functions; TVM's expressions are slow to evaluate per call."""
        return _formula(self.pair.left), _formula(self.pair.right)

    def problem(self, extents: Mapping[str, int]) -> str | None:
        """Return an error message if these values of the symbols break the constraint, or None."""
        left, right, at_most = self.pair
        try:
            found, wanted = (number(extents) for number in self._numbers)
        except ZeroDivisionError:
            return f"{self.words} divides by 0"
        if found == wanted or (at_most and found < wanted):
            return None
        if self.is_size:
            return f"{self.words} has {found} numbers, but the new shape holds {wanted}"
        relation = "at most" if at_most else "equal to"
        return f"{self.words} needs {format_shape([left])} {relation} {format_shape([right])}"


def unproved(bindings: Iterable[Any], letters: Iterable[str]) -> list[Demand]:
    """Return the distinct constraints that TVM cannot prove for all values of the symbols."""
    known, analyzer = dict.fromkeys(letters, 1), Analyzer()
    found: dict[str, Demand] = {}
    for binding in bindings:
        for demand in _demands(binding):
            left, right, _ = demand.pair
            if analyzer.can_prove_equal(left, right):
                continue
            if _is_known(left, known) and _is_known(right, known):
                found[str(demand)] = demand
    return list(found.values())


def _demands(binding: Any) -> list[Demand]:
    if name_of(binding.value) == "relax.reshape":
        before, after = shape_of(binding.value.args[0]), shape_of(binding.var)
        if before is None or after is None:
            return []
        words = f"a reshape of ({format_shape(before)}) to ({format_shape(after)})"
        return [Demand(Pair(size_of(before), size_of(after)), words, is_size=True)]
    return [Demand(pair, describe_call(binding.value)) for pair in required_pairs(binding.value)]


def impossible(demands: Iterable[Demand]) -> str | None:
    """Return the error of a constraint that is false for all values of the symbols, or None."""
    for demand in demands:
        with suppress(KeyError):
            if problem := demand.problem({}):
                return problem
    return None


def value_of(expr: Any, extents: Mapping[str, int]) -> int | None:
    """Return an expression's value, or None if a symbol is unknown or it divides by zero."""
    try:
        return _formula(expr)(extents)
    except (KeyError, ZeroDivisionError):
        return None


def _is_known(expr: Any, known: Mapping[str, int]) -> bool:
    try:
        with suppress(ZeroDivisionError):  # only these placeholder values divide by zero
            _formula(expr)(known)
    except KeyError:
        return False
    return True


def _formula(expr: Any) -> Formula:
    """Return a function of the symbols' values; an unknown symbol or operation is a KeyError."""
    if isinstance(expr, tirx.IntImm):
        number = int(expr)
        return lambda extents: number
    if isinstance(expr, tirx.Var):
        return itemgetter(str(expr))
    operation, left, right = _ARITHMETIC[type(expr)], _formula(expr.a), _formula(expr.b)
    return lambda extents: operation(left(extents), right(extents))
