# SPDX-License-Identifier: Apache-2.0
"""Argument binding: find a compiled function's arrays by name and check them before it runs.

Generated code checks nothing: with an id outside its table it reads out of bounds, and with
decreasing offsets it writes out of bounds. So `argument` checks shapes, dtypes and the range of
ids; this module checks the order of offsets and the extents that arguments share. Cost: one pass
over the ids and offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relax, tirx

from sparsetrain import runtime
from sparsetrain.compiler.argument import Argument
from sparsetrain.compiler.shape_constraints import impossible, unproved, value_of
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.ops.indexing import Limit, limits, require_inside
from sparsetrain.ops.operand_shapes import require_shapes
from sparsetrain.runtime.tensors import is_aligned
from sparsetrain.system.argument_checks import require_mapping


class _Found(NamedTuple):
    """The parameters that the previous call bound, and the arguments that they leave open."""

    names: list[str]
    values: list[Any]
    template: list[Any]  # a checked tensor per argument; None for those in `open`
    open: list[tuple[int, Argument]]  # position and argument, to be bound in each call


class Arguments:
    """The arguments of one Relax function.

    Parameters
    ----------
    function : relax.Function
        The function before lowering.
    name : str
        The function's name, for error messages.
    device : Device
        The device that runs the function; by default the host.

    Raises
    ------
    ConfigError
        If an argument has an extent such as B + 1 but none has B, if the shape of an intermediate
        result is unknown (`operand_shapes.require_shapes`), or if no lengths satisfy an operator's
        assumptions.

    Attributes
    ----------
    by_name : dict of str to Argument
        The arguments, in the function's order.
    num_inputs : int
        How many of the first arguments are inputs rather than parameters.
    """

    def __init__(
        self, function: relax.Function, name: str, device: tvm.runtime.Device | None = None
    ) -> None:
        self.function = name
        device = device or tvm.cpu()
        self.by_name = {p.name: Argument(p.name, p.ty, device) for p in function.params}
        self.num_inputs = int(function.attrs.get("num_input", len(self.by_name)))
        self._symbols = [
            (position, axis, symbol)
            for position, argument in enumerate(self.by_name.values())
            for axis, symbol in argument.symbols
        ]
        self._expressions = {
            str(extent): extent
            for p in function.params
            for extent in getattr(p.ty, "shape", None) or ()
            if not isinstance(extent, (tirx.IntImm, tirx.Var))
        }
        self._found: _Found | None = None
        self._bags: dict[str, tuple[str, int]] = {}
        self._ends: dict[str, Any] = {}  # argument with the ends of ragged rows -> number of tokens
        self._limits: list[tuple[str, Limit]] = []
        _require_letters(function, name)
        require_shapes(_bindings(function))
        self._read_lookups(function)
        self._demands = unproved(_bindings(function), {symbol for _, _, symbol in self._symbols})
        if problem := impossible(self._demands):
            raise ConfigError(f"{problem}, for all arguments of {name!r}")

    def bind(
        self, params: Mapping[str, Any], inputs: Mapping[str, Any], checked: bool = False
    ) -> list[runtime.NDArray]:
        """Return tensors in the function's order; with `checked`, ids are not checked again.

        Raises
        ------
        ConfigError
            If an argument is missing, or `params` or `inputs` is not a mapping.
        DataError
            If an array does not fit its argument, an id is outside its table, or offsets do not
            fit their ids.
        """
        if type(params) is not dict or type(inputs) is not dict:
            require_mapping("params", params)
            require_mapping("inputs", inputs)
        known = self._known(params)
        bound = known.template.copy()
        for place, argument in known.open:
            value = params.get(argument.name)
            if value is None:
                value = inputs.get(argument.name)
            if value is None:
                given = sorted({*params, *inputs})
                raise ConfigError(
                    f"argument {argument.name!r} of {self.function!r} is missing; given: {given}"
                )
            # The compiled program itself refuses a wrong shape or dtype.
            trusted = checked and isinstance(value, runtime.NDArray) and is_aligned(value)
            bound[place] = value if trusted else argument.tensor(value, checked)
        if self._bags:
            self._check_bags(params, inputs, bound)
        seen = self._check_symbols(bound)
        if (self._limits or self._ends) and not checked:
            letters = {symbol: extent for symbol, (_, extent) in seen.items()}
            self._check_limits(bound, letters)
            self._check_ends({**inputs, **params}, letters)
        return bound

    def _known(self, params: Mapping[str, Any]) -> _Found:
        """Return the previous call's binding of parameters, or a new one if a parameter changed.

        The cached object is replaced, never mutated: several threads may bind arguments at once.
        """
        names, values, found = [*params], [*params.values()], self._found
        if found is None or names != found.names or not all(map(is_, values, found.values)):
            template = [
                argument.require(params[name])
                if argument.rows is None and isinstance(params.get(name), runtime.NDArray)
                else None
                for name, argument in self.by_name.items()
            ]
            places = enumerate(self.by_name.values())
            still = [(place, argument) for place, argument in places if template[place] is None]
            found = self._found = _Found(names, values, template, still)
        return found

    def _check_symbols(self, bound: Sequence[runtime.NDArray]) -> dict[str, tuple[int, int]]:
        """Check that each symbol has one extent; return it with its first argument's position."""
        seen: dict[str, tuple[int, int]] = {}
        for position, axis, symbol in self._symbols:
            shape = bound[position].shape
            if axis >= len(shape):  # the virtual machine refuses a wrong rank
                continue
            first, expected = seen.setdefault(symbol, (position, shape[axis]))
            if shape[axis] != expected:
                names = list(self.by_name)
                raise DataError(
                    f"argument {names[position]!r} has {symbol} = {shape[axis]} on axis {axis}, "
                    f"but {names[first]!r} has {symbol} = {expected}: they must be equal"
                )
        if self._expressions:
            self._check_expressions(seen)
        if self._demands:
            self._check_demands(seen)
        return seen

    def _check_expressions(self, seen: Mapping[str, tuple[int, int]]) -> None:
        """Check that an extent such as B + 1 agrees with the value of B."""
        letters, names = {letter: extent for letter, (_, extent) in seen.items()}, [*self.by_name]
        for symbol, expression in self._expressions.items():
            expected = value_of(expression, letters)
            if symbol in seen and expected not in (None, letters[symbol]):
                raise DataError(
                    f"argument {names[seen[symbol][0]]!r} has {symbol} = {letters[symbol]}, which "
                    f"must be {expected}"
                )

    def _check_limits(self, bound: Sequence[runtime.NDArray], extents: Mapping[str, int]) -> None:
        """Check the ids of indexing operators if the extents that they index are known."""
        tensors = dict(zip(self.by_name, bound, strict=True))
        for name, limit in self._limits:
            sizes = [value_of(extent, extents) for extent in limit.extents]
            if None not in sizes:
                require_inside(runtime.as_numpy(tensors[name]), name, sizes, limit)

    def _check_ends(self, given: Mapping[str, Any], extents: Mapping[str, int]) -> None:
        """Check that row ends given as an array fit the tokens; TVM tensors are trusted."""
        for name, extent in self._ends.items():
            count = value_of(extent, extents)
            if count is not None and not isinstance(given[name], runtime.NDArray):
                ends = np.asarray(given[name])
                if len(ends) and (ends[0] < 0 or (np.diff(ends) < 0).any() or ends[-1] != count):
                    raise DataError(
                        f"argument {name!r} must hold the end of each row: positions that "
                        f"never fall, up to the number of tokens, {count}"
                    )

    def _check_demands(self, seen: Mapping[str, tuple[int, int]]) -> None:
        """Check that the extents in this call satisfy the operators' assumptions."""
        extents, names = {letter: extent for letter, (_, extent) in seen.items()}, [*self.by_name]
        for problem in filter(None, (demand.problem(extents) for demand in self._demands)):
            given = ", ".join(f"{s} = {n} of {names[at]!r}" for s, (at, n) in seen.items())
            more = "; a feature has one offset more than there are rows" if self._bags else ""
            raise DataError(f"{problem}, with {given}{more}")

    def _check_bags(
        self,
        params: Mapping[str, Any],
        inputs: Mapping[str, Any],
        bound: Sequence[runtime.NDArray],
    ) -> None:
        """Check that offsets given as an array fit the ids; TVM tensors are trusted."""
        for name, (ids, features) in self._bags.items():
            if not isinstance(params.get(name, inputs.get(name)), runtime.NDArray):
                tensors = dict(zip(self.by_name, bound, strict=True))
                num_ids = tensors[ids].shape[0]
                _check_offsets(runtime.as_numpy(tensors[name]), name, num_ids, features)

    def _read_lookups(self, function: relax.Function) -> None:
        """Find the arguments that operators use directly as ids, offsets or row ends."""
        names = {param: param.name for param in function.params}
        for binding in _bindings(function):
            call = binding.value
            operator = getattr(getattr(call, "op", None), "name", "")
            if operator in _KEEPS_IDS and call.args[0] in names:
                names[binding.var] = names[call.args[0]]
            rows = _LOOKUPS[operator](call) if operator in _LOOKUPS else None
            for limit in limits(call):
                if isinstance(limit.ids, tvm.ir.GenericConst):
                    _require_constants_inside(limit)
                elif limit.ids in names and rows is None:
                    self._limits.append((names[limit.ids], limit))
            for tokens, ends in _RAGGED.get(operator, ()):
                if call.args[ends] in names:
                    self._ends[names[call.args[ends]]] = call.args[tokens].ty.shape[0]
            if operator not in _LOOKUPS or call.args[1] not in names:
                continue
            ids = names[call.args[1]]
            if rows is not None:
                argument = self.by_name[ids]
                argument.rows = rows if argument.rows is None else min(rows, argument.rows)
            if operator == _BAG and call.args[2] in names:
                self._bags[names[call.args[2]]] = ids, int(call.attrs["features"])


def _bindings(function: relax.Function) -> list[Any]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def _table_rows(call: Any, axis: int = 0) -> int | None:
    extent = call.args[0].ty.shape[axis]
    return int(extent) if isinstance(extent, tvm.tirx.IntImm) else None


def _taken_rows(call: Any) -> int | None:
    """Return the upper bound of the ids of a `take` from a table in mode "fast", or None.

    The other modes clip or wrap ids. Ids into an activation may be negative and count from the end
    (see `ops.indexing.limits`).
    """
    axis = call.attrs["axis"]
    is_table = not isinstance(call.args[0], relax.DataflowVar)
    by_ids = is_table and str(call.attrs["mode"]) == "fast"
    return _table_rows(call, int(axis or 0)) if by_ids else None


_BAG = "relax.sparsetrain.embedding_bag"
# Operator -> function of a call that returns the upper bound of its ids, or None.
_LOOKUPS = {
    "relax.take": _taken_rows,
    "relax.sparsetrain.lookup": _table_rows,
    _BAG: _table_rows,
}
# Operator on ragged rows -> pairs of argument positions: the tokens, and the ends of their rows.
_RAGGED = {
    f"relax.sparsetrain.ragged_{name}": places
    for name, places in {
        **dict.fromkeys(("sum", "max", "last", "positions", "distances"), [(0, 1)]),
        "expand": [(2, 1)],
        "take": [(0, 1), (2, 3)],
        "attention": [(0, 3)],
        "attention_at": [(1, 3), (0, 5)],
    }.items()
}
_KEEPS_IDS = frozenset({"relax.reshape", "relax.flatten", "relax.astype"})


def _require_constants_inside(limit: Limit) -> None:
    sizes = [value_of(extent, {}) for extent in limit.extents]
    if None not in sizes:
        try:
            require_inside(limit.ids.value.numpy(), "a constant", sizes, limit)
        except DataError as error:
            raise ConfigError(str(error)) from None


def _require_letters(function: relax.Function, name: str) -> None:
    """Refuse a symbol B that occurs only in extents such as B + 1: TVM does not solve for B."""
    extents = [(p.name, e) for p in function.params for e in getattr(p.ty, "shape", None) or ()]
    alone = [extent for _, extent in extents if isinstance(extent, tirx.Var)]
    for argument, extent in extents:
        for letter in tirx.analysis.undefined_vars(extent):
            if not any(letter.same_as(known) for known in alone):
                raise ConfigError(
                    f"{name!r}: argument {argument!r} has the extent {extent}, but no argument has "
                    f"{letter} alone as an extent: write a new symbol in place of {extent}"
                )


def _check_offsets(offsets: np.ndarray, name: str, num_ids: int, features: int) -> None:
    if (len(offsets) - 1) % features or not len(offsets):
        raise DataError(
            f"argument {name!r} has {len(offsets)} offsets, but must have {features} * B + 1"
        )
    if offsets[0] != 0 or offsets[-1] != num_ids or (np.diff(offsets) < 0).any():
        raise DataError(f"argument {name!r} must rise from 0 to the number of ids, {num_ids}")
