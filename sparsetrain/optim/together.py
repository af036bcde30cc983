# SPDX-License-Identifier: Apache-2.0
"""All dense parameters that follow one rule, updated by one launch.

A model has a weight and a bias for each layer, most of them small: with a launch each, calling the
kernels took longer than running them (hence ``foreach`` in PyTorch). One kernel with a loop over
the parameters does the same arithmetic in the same order, by the same body as that for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.llvm.select_array import each_in_turn, one_of
from sparsetrain.optim.cuda import arrays as cuda_arrays
from sparsetrain.optim.kernel_parts import Parameter, flat, matrix, scalars
from sparsetrain.optim.kernel_spec import KernelSpec
from sparsetrain.optim.kernels import dense_tasks
from sparsetrain.optim.range_update import Target
from sparsetrain.optim.rule import Rule
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import target_kernel
from sparsetrain.runtime.tensors import target_of

Bodies = Callable[[Sequence[tuple[Parameter, Any]], SimpleNamespace], None]

STRIPS = 32  # of the work: more than threads, so that they share it evenly
MOST = 32  # parameters of one kernel, which chooses among them


class Together:
    """Dense parameters of one dtype and at least one axis that follow one rule.

    Parameters
    ----------
    rule : Rule
        Its spec is what is computed.
    targets : mapping of str to Target
        The parameters and their slots, by name.
    """

    def __init__(self, rule: Rule, targets: Mapping[str, Target]) -> None:
        self.rule, self.names = rule, [*targets]
        spec = rule.spec
        arrays = {
            name: (target.param, *(target.slots[slot.name] for slot in spec.formula.slots))
            for name, target in targets.items()
        }
        items = [*arrays.items()]
        self._launches = [
            (_kernel_for(spec, part), part)
            for part in (items[start : start + MOST] for start in range(0, len(items), MOST))
        ]

    def update_(self, gradients: Mapping[str, Any], numbers: Sequence[float]) -> None:
        """Write all parameters and slots."""
        for run, part in self._launches:
            arrays = [array for name, own in part for array in (gradients[name], *own)]
            run(*arrays, *numbers)


def _kernel_for(spec: KernelSpec, part: Sequence[tuple[str, tuple[NDArray, ...]]]) -> Any:
    params = [own[0] for _, own in part]
    ranks = tuple(len(param.shape) for param in params)
    return _kernel(target_of(params[0]), spec, str(params[0].dtype), ranks)


def together_kernel(
    spec: KernelSpec, dtype: str, ranks: Sequence[int], bodies: Bodies | None = None
) -> PrimFunc:
    """For each parameter: gradient, weight, slots, as they are; then the scalars of the spec.

    `bodies` writes what is done with all parameters and their gradients; the CPU's by default.
    """
    with kernel() as built:
        arrays = [arguments(spec, dtype, rank) for rank in ranks]
        h = scalars(spec.scalars, dtype)
        (bodies or in_strips)([seen(spec, *each) for each in arrays], h)
    return built.get()


def in_strips(seen: Sequence[tuple[Parameter, Any]], h: SimpleNamespace) -> None:
    """Inside a kernel: update parameters, each seen with its gradient, some of each in a strip."""
    spec = seen[0][0].spec
    alike = list(zip(*((g, p.weight, *p.slots) for p, g in seen), strict=True))
    with T.parallel(0, STRIPS) as strip, each_in_turn(len(seen)) as number:
        gradient, weight, *slots = (one_of(arrays, number) for arrays in alike)
        parameter = Parameter(spec, weight, slots, weight.shape[1], seen[0][0].stored)
        height = weight.shape[0 if spec.formula.by_row else 1]
        tasks, work = dense_tasks(parameter, gradient, h, (const(0, "int64"), height))
        first = T.Bind(tasks * strip // STRIPS)
        with T.serial(0, T.Bind(tasks * (strip + 1) // STRIPS) - first) as task:
            work(T.Bind(first + task))


def arguments(spec: KernelSpec, dtype: str, rank: int) -> tuple[Any, Any, list[Any]]:
    """Gradient, weight and slots of one parameter as arguments of a kernel, as they are."""
    shape = extents(rank)
    rows = shape if rank == 1 else extents(1)
    shapes = {"element": shape, "row": rows}
    gradient, weight = (buffer(name, shape, dtype) for name in ("gradient", "weight"))
    slots = spec.formula.slots
    return gradient, weight, [buffer(slot.name, shapes[slot.per], dtype) for slot in slots]


def seen(
    spec: KernelSpec, gradient: Any, weight: Any, slots: Sequence[Any]
) -> tuple[Parameter, Any]:
    """The same as the formula sees them: by rows, or as one row."""
    view = matrix if spec.formula.by_row else flat
    each = zip(spec.formula.slots, slots, strict=True)
    viewed = [s if slot.per == "row" else view(s) for slot, s in each]
    whole = view(weight)
    parameter = Parameter(spec, whole, viewed, whole.shape[1], str(whole.dtype))
    return parameter, view(gradient)


_kernel = target_kernel(
    "dense updates",
    llvm=together_kernel,
    cuda=partial(together_kernel, bodies=cuda_arrays.update_all),
)
