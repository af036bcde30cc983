# SPDX-License-Identifier: Apache-2.0
"""The gate of a compiled function: its arguments are found by name and checked before it runs.

Generated code checks nothing: an id outside its table reads other memory, a falling offset writes
to it. So arrays are checked for shape, dtype, range of ids and order of offsets, and copied into
aligned memory. Tensors of TVM's runtime are used as they are; their ids are checked too. What an
argument is looked up in is read off the function once. Cost: one pass over ids and offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from sparsetrain import runtime
from sparsetrain.errors import ConfigError, DataError


class Arguments:
    """The arguments of one Relax function.

    Parameters
    ----------
    function : relax.Function
        Before lowering.
    name : str
        What to call it in a message.
    """

    def __init__(self, function: relax.Function, name: str) -> None:
        self.function = name
        self.types = {param.name: param.ty for param in function.params}
        self.num_inputs = int(function.attrs.get("num_input", len(self.types)))
        self._symbols = {n: _symbols(ty) for n, ty in self.types.items()}
        self._rows: dict[str, int] = {}
        self._bags: dict[str, tuple[str, int]] = {}
        self._read_lookups(function)

    def bind(self, params: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[runtime.NDArray]:
        """Tensors in the function's order.

        Raises
        ------
        ConfigError
            If an argument is missing.
        DataError
            If an array does not fit its argument, an id its table, or offsets their ids.
        """
        bound = {name: self._tensor(name, params, inputs) for name in self.types}
        self._check_symbols(bound)
        for name, (ids, features) in self._bags.items():
            if not isinstance(params.get(name, inputs.get(name)), runtime.NDArray):
                _check_offsets(runtime.as_numpy(bound[name]), name, bound[ids].shape[0], features)
        return list(bound.values())

    def _tensor(self, name: str, params: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        value = params.get(name, inputs.get(name))
        if value is None:
            given = sorted({*params, *inputs})
            raise ConfigError(f"argument {name!r} of {self.function!r} is missing; given: {given}")
        known = isinstance(value, runtime.NDArray)
        tensor = value if known else _checked(value, name, self.types[name])
        if name in self._rows:
            _check_ids(runtime.as_numpy(tensor), name, self._rows[name])
        return tensor

    def _check_symbols(self, bound: Mapping[str, runtime.NDArray]) -> None:
        """Extents that the function calls by one letter must be equal."""
        seen: dict[str, tuple[str, int]] = {}
        for name, tensor in bound.items():
            rank = len(tensor.shape)  # a wrong one is for the virtual machine to refuse
            for axis, symbol in (pair for pair in self._symbols[name] if pair[0] < rank):
                extent = int(tensor.shape[axis])
                first, expected = seen.setdefault(symbol, (name, extent))
                if extent != expected:
                    raise DataError(
                        f"argument {name!r} has {symbol} = {extent} on axis {axis}, but {first!r} "
                        f"has {symbol} = {expected}: they must be equal"
                    )

    def _read_lookups(self, function: relax.Function) -> None:
        """Find the arguments that are used as ids or offsets just as they come."""
        names = {param: param.name for param in function.params}
        for binding in (b for block in function.body.blocks for b in block.bindings):
            call = binding.value
            operator = getattr(getattr(call, "op", None), "name", "")
            if operator in _KEEPS_IDS and call.args[0] in names:
                names[binding.var] = names[call.args[0]]
            if operator not in _LOOKUPS or call.args[1] not in names:
                continue
            ids, rows = names[call.args[1]], _LOOKUPS[operator](call)
            if rows is not None:
                self._rows[ids] = min(rows, self._rows.get(ids, rows))
            if operator == _BAG and call.args[2] in names:
                self._bags[names[call.args[2]]] = ids, int(call.attrs["features"])


def _table_rows(call: Any, axis: int = 0) -> int | None:
    extent = call.args[0].ty.shape[axis]
    return int(extent) if isinstance(extent, tvm.tirx.IntImm) else None


def _taken_rows(call: Any) -> int | None:
    """Only the mode "fast" takes ids as they come; the others clip or wrap what lies outside."""
    axis = call.attrs["axis"]
    return _table_rows(call, int(axis or 0)) if str(call.attrs["mode"]) == "fast" else None


_BAG = "relax.sparsetrain.embedding_bag"
# Operator -> the number that its ids must lie below; None where there is no such number.
_LOOKUPS = {
    "relax.take": _taken_rows,
    "relax.sparsetrain.lookup": _table_rows,
    _BAG: _table_rows,
}
_KEEPS_IDS = frozenset({"relax.reshape", "relax.flatten", "relax.astype"})


def _symbols(ty: Any) -> list[tuple[int, str]]:
    extents = enumerate(getattr(ty, "shape", None) or ())
    return [(axis, extent.name) for axis, extent in extents if isinstance(extent, tvm.tirx.Var)]


def _checked(value: Any, name: str, ty: relax.TensorType) -> runtime.NDArray:
    if ty.shape is None:  # known only when it runs; a match_cast in the function checks it
        return runtime.as_tensor(value, str(ty.dtype))
    wanted = tuple(int(n) if isinstance(n, tvm.tirx.IntImm) else str(n) for n in ty.shape)
    try:
        array = np.asarray(value)
        fits = len(wanted) == array.ndim and all(
            isinstance(w, str) or w == n for w, n in zip(wanted, array.shape, strict=True)
        )
        if fits:
            return runtime.as_tensor(array, str(ty.dtype))
    except ValueError as error:  # NumPy's for ragged lists, DataError for numbers that do not fit
        raise DataError(f"argument {name!r}: {error}") from None
    shape = ", ".join(map(str, wanted))
    raise DataError(f"argument {name!r} must have shape ({shape}), not {array.shape}")


def _check_ids(ids: np.ndarray, name: str, rows: int) -> None:
    if ids.size and (ids.min() < 0 or ids.max() >= rows):
        place = tuple(int(i) for i in np.argwhere((ids < 0) | (ids >= rows))[0])
        raise DataError(
            f"argument {name!r}: id {int(ids[place])} at {place} is outside the table's {rows} rows"
        )


def _check_offsets(offsets: np.ndarray, name: str, num_ids: int, features: int) -> None:
    if (len(offsets) - 1) % features or not len(offsets):
        raise DataError(
            f"argument {name!r} has {len(offsets)} offsets, but must have {features} * B + 1"
        )
    if offsets[0] != 0 or offsets[-1] != num_ids or (np.diff(offsets) < 0).any():
        raise DataError(f"argument {name!r} must rise from 0 to the number of ids, {num_ids}")
