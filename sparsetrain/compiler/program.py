# SPDX-License-Identifier: Apache-2.0
"""Compiled program: a Relax function that takes arrays by name.

One compiled program accepts every batch size and tables of any size (`free_rows`). `arguments`
checks arrays before the program runs; kernels check nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from sparsetrain import ad, runtime
from sparsetrain.backend import backend_of
from sparsetrain.compiler import program_cache, schedule
from sparsetrain.compiler.arguments import Arguments
from sparsetrain.compiler.compile_errors import naming_operators
from sparsetrain.compiler.dead_rows import Spared, describe, eliminate_dead_rows
from sparsetrain.compiler.free_rows import with_free_rows
from sparsetrain.compiler.precision.arithmetic import Rounding, rewritten
from sparsetrain.embedding.take import take_as_lookup
from sparsetrain.kernels.relax_op import callees, find_function
from sparsetrain.runtime.compiling import compile_relax
from sparsetrain.runtime.object_files import TOGETHER
from sparsetrain.runtime.pool import limit_pool
from sparsetrain.runtime.targets import device_of, resolve_target
from sparsetrain.runtime.tensors import to_device
from sparsetrain.runtime.workspace import BufferLifetime, Workspace, parse_lifetimes
from sparsetrain.system.argument_checks import require_mapping
from sparsetrain.system.html import escape, table
from sparsetrain.system.locks import new_lock

_SHAPE = attrgetter("shape")


class Program:
    """A Relax function that is compiled when it is first called.

    Calls from several threads are serialized: a virtual machine runs one call at a time.

    Parameters
    ----------
    module : tvm.IRModule
        The program before lowering.
    function : str
        Name of the function to run.
    target : str or tvm.target.Target
        See `sparsetrain.runtime.targets.resolve_target`.
    precision : Policy or Arithmetic, optional
        Decides which operators run in half precision (see `sparsetrain.compiler.precision`); by
        default none do.

    Attributes
    ----------
    spared : tuple of Spared
        Operators that run on fewer rows than in the given module (see
        `sparsetrain.compiler.dead_rows`); ``print(program)`` lists them.
    """

    spared: tuple[Spared, ...] = ()
    _is_gradient = False  # dead rows are eliminated before differentiation

    def __init__(
        self,
        module: tvm.IRModule,
        function: str,
        target: Any = "auto",
        precision: Rounding = None,
    ) -> None:
        self.target = resolve_target(target)
        self.backend = backend_of(self.target)
        find_function(module, function)
        module = extract(module, function)
        self.arguments = Arguments(module[function], function, device_of(self.target))
        if not self._is_gradient:
            with self.target:
                module, self.spared = eliminate_dead_rows(module, function, trains=False)
        self.module = rewritten(module, function, precision)
        self.function = function
        self._lock = new_lock()

    def __repr__(self) -> str:
        count = len(self.arguments.by_name)
        kind, device = type(self).__name__, self.target.kind.name
        return f"<{kind}: {self.function}, {count} arguments, on {device}>"

    def __str__(self) -> str:
        return "\n".join([repr(self), *describe(self.spared)])

    def _repr_html_(self) -> str:
        rows = [
            (name, " x ".join(map(str, argument.shape or ())), argument.dtype)
            for name, argument in self.arguments.by_name.items()
        ]
        return f"<b>{escape(str(self))}</b>\n{table(rows, ('argument', 'shape', 'dtype'))}"

    def flops_spared(self, inputs: Mapping[str, Any]) -> int:
        """Return how many FLOPs of forward products are saved because dead rows are not computed.

        The number depends on the shapes of `inputs`.
        """
        extents = {
            symbol: int(inputs[name].shape[axis])
            for name, argument in self.arguments.by_name.items()
            for axis, symbol in argument.symbols
            if name in inputs
        }
        return sum(each.saved(extents) for each in self.spared)

    @cached_property
    def machine(self) -> Any:
        """The virtual machine that runs the function; compiled at first use."""
        return program_cache.load_or_build(self._compiled_from, self.target, self.executable)

    def executable(
        self, place: Path | None = None, hoists: bool = True, together: int = TOGETHER
    ) -> relax.VMExecutable:
        """Compile the function (see `compile_relax`); if `hoists`, callers pass its buffers."""
        name = self._hoisted if hoists else None
        module, pipeline = self._compiled_from, schedule.pipeline(self.target, name)
        with naming_operators(module, self.target):
            return compile_relax(module, self.target, pipeline, place, together)

    @property
    def _compiled_from(self) -> tvm.IRModule:
        """The module to compile: `take` becomes a lookup, numbers of table rows are symbolic."""
        return with_free_rows(take_as_lookup(self.module), self.function)

    @cached_property
    def _compiled(self) -> Any:
        return self.machine[self.function]

    @property
    def _hoisted(self) -> str | None:
        """The function's name if it takes its buffers as arguments; None if TVM's pool has them."""
        return self.function if self.backend.hoists else None

    @cached_property
    def _workspace(self) -> Workspace:
        return Workspace(self._lifetimes)

    def _lifetimes(self, arguments: Sequence[runtime.NDArray]) -> Sequence[BufferLifetime]:
        """Return the buffers that the function needs for arguments of these sizes."""
        limit_pool(arguments[: self.arguments.num_inputs])
        if self._hoisted is None:
            return []
        sizes = self.machine[schedule.NEEDS.format(self._hoisted)]
        return parse_lifetimes(sizes(*arguments), schedule.KINDS)

    @property
    def is_compiled(self) -> bool:
        """Whether the function is compiled, so that a call need not compile it."""
        return "_compiled" in self.__dict__

    def compile(self) -> Program:
        """Compile now rather than at the first call."""
        _ = self._compiled
        return self

    def place(self, params: Mapping[str, Any]) -> dict[str, runtime.NDArray]:
        """Copy parameters to the program's device, for custom training loops on CUDA.

        Optimizers update parameters in place and need the gradients on the same device.

        Parameters
        ----------
        params : mapping of str to array
            Tables and all other parameters.

        Returns
        -------
        dict
            Tensors by name, to pass to the program, `optimizer.init` and `optimizer.apply_`. A
            tensor that is already on the device is not copied.

        Raises
        ------
        ConfigError
            If `params` is not a mapping.
        DataError
            If a value is not an array of numbers.
        ResourceError
            If the device has no memory left.
        """
        require_mapping("params", params)
        device = device_of(self.target)
        return {
            name: to_device(runtime.as_tensor(value), device, f"parameter {name!r}")
            for name, value in params.items()
        }

    def __call__(
        self, params: Mapping[str, Any], inputs: Mapping[str, Any], *, checked: bool = False
    ) -> Any:
        """Run the function.

        Parameters
        ----------
        params, inputs : mapping of str to array
            Together they hold every argument; `params` takes precedence. TVM tensors are used
            without a copy; arrays are checked and copied.
        checked : bool
            Whether all ids are known to be inside their tables, so that they are not copied back
            from the device for a check.

        Raises
        ------
        ConfigError
            If an argument is missing, or `params` or `inputs` is not a mapping.
        DataError
            If an array does not fit its argument, an id is outside its table, or offsets do not
            fit their ids.
        """
        bound = self.arguments.bind(params, inputs, checked)
        with self._lock:
            sizes = tuple(map(_SHAPE, bound[: self.arguments.num_inputs]))
            if not self.backend.hoists:
                bound = self.backend.place(bound)
            return self._compiled(*bound, *self._workspace.arrays(sizes, bound))


class GradientProgram(Program):
    """A program that returns ``(loss, gradients)``; see `value_and_grad`.

    Attributes
    ----------
    gradient : GradientModule
        The differentiated module that the program is compiled from.
    """

    _is_gradient = True

    def __init__(
        self,
        gradient: ad.GradientModule,
        target: Any = "auto",
        precision: Rounding = None,
        spared: tuple[Spared, ...] = (),
    ) -> None:
        super().__init__(gradient.module, gradient.function, target, precision)
        self.gradient, self.spared = gradient, spared

    def __call__(
        self, params: Mapping[str, Any], inputs: Mapping[str, Any], *, checked: bool = False
    ) -> tuple[Any, dict]:
        """Return the loss, a () tensor, and gradients by name: `RowSparse` or `tvm.runtime.Tensor`.

        If the function has more results than the loss, a tuple of all results replaces the loss.
        """
        results = super().__call__(params, inputs, checked=checked)
        behind = 1 + self.gradient.others
        gradients = self.gradient.unflatten(results[behind:])
        return (tuple(results[:behind]) if self.gradient.others else results[0]), gradients


def value_and_grad(
    module: tvm.IRModule,
    function: str,
    wrt: Sequence[str] | None = None,
    *,
    densify: Sequence[str] = (),
    target: Any = "auto",
    precision: Rounding = None,
    scaled: bool = False,
    buffers: Sequence[str] = (),
) -> GradientProgram:
    """Compile a Relax function of one dataflow block together with its gradient.

    Parameters
    ----------
    module : tvm.IRModule
        From ``nn.Module.export_tvm`` or any other source.
    function : str
        Name of a function that returns a floating-point scalar, or a tuple of tensors with such a
        scalar as the first.
    wrt : sequence of str, optional
        Parameters to differentiate; by default all floating-point parameters.
    densify : sequence of str
        Parameters that may have a dense gradient.
    target : str or tvm.target.Target
        Where the program runs.
    precision : Policy, optional
        Operators in half precision, such as `sparsetrain.compiler.precision.BFLOAT16`. Parameters
        and gradients stay float32.
    scaled : bool
        Whether the program has an input ``loss_scale``, a number that multiplies the gradients but
        not the loss. It may differ in each call, without compiling again.
    buffers : sequence of str
        Parameters, such as running statistics, for which the function returns new values as its
        last results. The program returns these among the gradients (see `Optimizer.init`).

    Returns
    -------
    GradientProgram
        ``program(params, inputs) -> (loss, {name: RowSparse or Tensor})``. If the function has more
        results, a tuple of all results replaces ``loss``. ``program.module`` is the IRModule
        before lowering.

    Raises
    ------
    ConfigError
        See `sparsetrain.ad.gradient`.
    """
    target = resolve_target(target)
    with target:
        module, spared = eliminate_dead_rows(module, function, trains=True)
    gradient = ad.gradient(module, function, wrt, densify, scaled, buffers)
    return GradientProgram(gradient, target, precision, spared)


def extract(module: tvm.IRModule, function: str) -> tvm.IRModule:
    """Return a module with the named function, its private functions inlined, and its kernels.

    Inlining lets `Arguments` read all requirements on arguments from one function.
    """
    named = {var: body for var, body in module.functions.items() if var.name_hint == function}
    called = callees(module)
    extracted = tvm.IRModule(named | called)
    if any(isinstance(body, relax.Function) for body in called.values()):
        extracted = relax.transform.InlinePrivateFunctions()(extracted)
    return extracted
