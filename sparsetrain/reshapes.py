# SPDX-License-Identifier: Apache-2.0
"""Reshapes that the compiler cannot vouch for: only the arguments of a call decide their extents.

The bags of one feature are as many as its offsets say, less one; a reshape that makes rows of the
batch of them is taken on trust by the compiler, and generated code then reads past the end if there
are fewer. So what could not be proved is computed for every call.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import reduce
from typing import Any, NamedTuple

from tvm import relax, tirx
from tvm.sym import Analyzer

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


class Reshape(NamedTuple):
    """One reshape that is right for some extents alone."""

    given: Any
    wanted: Any
    shapes: str

    def problem(self, extents: Mapping[str, int]) -> str | None:
        """What is wrong with these extents, by the letters that stand for them."""
        try:
            given, wanted = _number(self.given, extents), _number(self.wanted, extents)
        except ZeroDivisionError:
            return f"a reshape of {self.shapes} divides by nothing"
        if given == wanted:
            return None
        return f"a reshape of {self.shapes} has {given} numbers for {wanted}"


def unproved(bindings: Iterable[Any], letters: Iterable[str]) -> list[Reshape]:
    """Reshapes whose two sizes differ for some values of the letters; each once."""
    known, analyzer = dict.fromkeys(letters, 1), Analyzer()
    found: dict[str, Reshape] = {}
    for binding in bindings:
        if getattr(getattr(binding.value, "op", None), "name", "") != "relax.reshape":
            continue
        before, after = _shape(binding.value.args[0]), _shape(binding.var)
        if before is None or after is None:
            continue
        given, wanted = _size(before), _size(after)
        if analyzer.can_prove_equal(given, wanted):
            continue
        shapes = f"({_listed(before)}) to ({_listed(after)})"
        if _is_known(given, known) and _is_known(wanted, known):
            found[shapes] = Reshape(given, wanted, shapes)
    return list(found.values())


def _shape(expr: relax.Expr) -> list[Any] | None:
    shape = getattr(expr.ty, "shape", None)
    return None if shape is None else list(shape)


def _size(shape: list[Any]) -> Any:
    return reduce(operator.mul, shape, tirx.const(1, "int64"))


def _listed(shape: list[Any]) -> str:
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", ", ".join(map(str, shape)))


def _is_known(expr: Any, known: Mapping[str, int]) -> bool:
    try:
        with suppress(ZeroDivisionError):  # by these numbers alone
            _number(expr, known)
    except KeyError:
        return False
    return True


def _number(expr: Any, extents: Mapping[str, int]) -> int:
    """The value of an expression; KeyError for a letter or an operation that is not known."""
    if isinstance(expr, tirx.IntImm):
        return int(expr)
    if isinstance(expr, tirx.Var):
        return extents[str(expr)]
    left, right = getattr(expr, "a", None), getattr(expr, "b", None)
    return _ARITHMETIC[type(expr)](_number(left, extents), _number(right, extents))
