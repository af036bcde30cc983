# SPDX-License-Identifier: Apache-2.0
"""From a Relax function to a compiled program that takes arrays by name.

One compile serves every batch size. Arguments are checked where they enter: names, shapes, dtypes,
and ids against the rows of the table they are looked up in; kernels check nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import relax

from sparsetrain import ad, runtime, schedule
from sparsetrain.errors import ConfigError, DataError


class Program:
    """A compiled Relax function; compiles when it is first called.

    Parameters
    ----------
    module : tvm.IRModule
        The program before lowering.
    function : str
        Name of the function to run.
    target : str or tvm.target.Target
        See `sparsetrain.runtime.resolve_target`.
    """

    def __init__(self, module: tvm.IRModule, function: str, target: Any = "auto") -> None:
        self.module = extract(module, function)
        self.function = function
        self.target = runtime.resolve_target(target)
        self.arguments = {param.name: param.ty for param in module[function].params}
        self._bounds = id_bounds(module[function])

    @cached_property
    def _compiled(self) -> Any:
        machine = runtime.build_relax(self.module, self.target, schedule.pipeline(self.target))
        return machine[self.function]

    def compile(self) -> Program:
        """Compile now rather than at the first call."""
        _ = self._compiled
        return self

    def __call__(self, params: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        """Run the function.

        Parameters
        ----------
        params, inputs : mapping of str to array
            Together they hold every argument; `params` wins. Tensors of TVM's runtime are used as
            they are, any other array is checked and copied.

        Raises
        ------
        ConfigError
            If an argument is missing.
        DataError
            If an array does not fit its argument, or an id its table.
        """
        return self._compiled(*(self._argument(n, params, inputs) for n in self.arguments))

    def _argument(self, name: str, params: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        value = params.get(name, inputs.get(name))
        if value is None:
            given = sorted({*params, *inputs})
            raise ConfigError(f"argument {name!r} of {self.function!r} is missing; given: {given}")
        if isinstance(value, runtime.NDArray):
            return value
        ty = self.arguments[name]
        tensor = _checked(value, name, ty)
        if name in self._bounds:
            _check_ids(runtime.as_numpy(tensor), name, self._bounds[name])
        return tensor


class GradientProgram(Program):
    """A program that returns ``(loss, gradients)``; see `value_and_grad`."""

    def __init__(self, gradient: ad.GradientModule, target: Any = "auto") -> None:
        super().__init__(gradient.module, gradient.function, target)
        self.gradient = gradient

    def __call__(self, params: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[Any, dict]:
        """Loss, a () tensor, and the gradients by name: `RowSparse` or `tvm.runtime.Tensor`."""
        loss, *leaves = super().__call__(params, inputs)
        return loss, self.gradient.unflatten(leaves)


def value_and_grad(
    module: tvm.IRModule,
    function: str,
    wrt: Sequence[str] | None = None,
    *,
    densify: Sequence[str] = (),
    target: Any = "auto",
) -> GradientProgram:
    """Compile a Relax function of one dataflow block together with its gradient.

    Parameters
    ----------
    module : tvm.IRModule
        From ``nn.Module.export_tvm`` or any other source.
    function : str
        Its function with a scalar floating-point result.
    wrt : sequence of str, optional
        Parameters to differentiate; by default all floating-point ones.
    densify : sequence of str
        Parameters whose gradient may become dense.
    target : str or tvm.target.Target
        Where to run.

    Returns
    -------
    GradientProgram
        ``program(params, inputs) -> (loss, {name: RowSparse or Tensor})``; ``program.module`` is
        the IRModule before lowering.

    Raises
    ------
    ConfigError
        See `sparsetrain.ad.gradient`.
    """
    return GradientProgram(ad.gradient(module, function, wrt, densify), target)


def extract(module: tvm.IRModule, function: str) -> tvm.IRModule:
    """The named function and what it may call: kernels and private functions."""
    kept = {
        var: body
        for var, body in module.functions.items()
        if var.name_hint == function
        or isinstance(body, tvm.tirx.PrimFunc)
        or "global_symbol" not in (body.attrs or {})
    }
    return tvm.IRModule(kept)


def id_bounds(function: relax.Function) -> dict[str, int]:
    """Arguments that are looked up as they come, and the rows of the smallest table for each."""
    names = {param: param.name for param in function.params}
    bounds: dict[str, int] = {}
    for binding in function.body.blocks[0].bindings:
        call = binding.value
        operator = getattr(getattr(call, "op", None), "name", "")
        if operator in _KEEPS_IDS and call.args[0] in names:
            names[binding.var] = names[call.args[0]]
        elif operator in _LOOKUPS and call.args[1] in names:
            rows, name = call.args[0].ty.shape[0], names[call.args[1]]
            if isinstance(rows, tvm.tirx.IntImm):
                bounds[name] = min(int(rows), bounds.get(name, int(rows)))
    return bounds


_KEEPS_IDS = frozenset({"relax.reshape", "relax.flatten", "relax.astype"})
_LOOKUPS = frozenset({"relax.take", "relax.sparsetrain.lookup", "relax.sparsetrain.embedding_bag"})


def _checked(value: Any, name: str, ty: relax.TensorType) -> runtime.NDArray:
    array = np.asarray(value)
    wanted = [int(n) if isinstance(n, tvm.tirx.IntImm) else None for n in ty.shape]
    fits = len(wanted) == array.ndim and all(
        w is None or w == n for w, n in zip(wanted, array.shape, strict=True)
    )
    if not fits:
        raise DataError(f"argument {name!r} must have shape {tuple(ty.shape)}, not {array.shape}")
    try:
        return runtime.as_tensor(array, str(ty.dtype))
    except DataError as error:
        raise DataError(f"argument {name!r}: {error}") from None


def _check_ids(ids: np.ndarray, name: str, rows: int) -> None:
    if ids.size and (ids.min() < 0 or ids.max() >= rows):
        place = tuple(int(i) for i in np.argwhere((ids < 0) | (ids >= rows))[0])
        raise DataError(
            f"argument {name!r}: id {int(ids[place])} at {place} is outside the table's {rows} rows"
        )
