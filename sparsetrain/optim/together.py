# SPDX-License-Identifier: Apache-2.0
"""All dense parameters that follow one rule, updated by one launch.

A model has a weight and a bias for each layer, most of them small: with a launch each, calling the
kernels took longer than running them. One kernel with a loop for each parameter does the same
arithmetic in the same order, by the same body as the kernel for a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain import runtime
from sparsetrain.kernel_builder import buffer, kernel
from sparsetrain.optim import cuda_kernels
from sparsetrain.optim.kernel_parts import Parameter, flat, matrix, scalars
from sparsetrain.optim.kernels import dense_body
from sparsetrain.optim.recipe import Recipe
from sparsetrain.runtime import NDArray

Bodies = Callable[[Sequence[tuple[Parameter, Any]], SimpleNamespace], None]

MOST = 32  # parameters of one kernel: it has a loop for each, which are compiled in milliseconds


class Whole(NamedTuple):
    """One parameter of at least one axis, all of it, and its gradient."""

    gradient: NDArray
    param: NDArray
    slots: tuple[NDArray, ...]


def update_together_(wholes: Sequence[Whole], recipe: Recipe, numbers: Sequence[float]) -> None:
    """Update parameters of one dtype by one recipe; writes `param` and `slots` of each."""
    for start in range(0, len(wholes), MOST):
        part = wholes[start : start + MOST]
        ranks = tuple(len(whole.param.shape) for whole in part)
        arrays = [a for whole in part for a in (whole.gradient, whole.param, *whole.slots)]
        target = runtime.target_of(part[0].param)
        _kernel(target, recipe, str(part[0].param.dtype), ranks)(*arrays, *numbers)


def together_kernel(
    recipe: Recipe, dtype: str, ranks: Sequence[int], bodies: Bodies | None = None
) -> PrimFunc:
    """For each parameter: gradient, weight, slots, as they are; then the scalars of the recipe.

    `bodies` writes what is done with all parameters and their gradients; the CPU's by default.
    """
    view = matrix if recipe.formula.by_row else flat
    with kernel() as built:
        arrays = [_arguments(recipe, dtype, rank) for rank in ranks]
        h = scalars(recipe.scalars, dtype)
        seen = []
        for gradient, weight, slots in arrays:
            each = zip(recipe.formula.slots, slots, strict=True)
            viewed = [s if slot.per == "row" else view(s) for slot, s in each]
            seen.append((Parameter.of(recipe, view(weight), viewed), view(gradient)))
        (bodies or _one_by_one)(seen, h)
    return built.get()


def _one_by_one(seen: Sequence[tuple[Parameter, Any]], h: SimpleNamespace) -> None:
    for parameter, gradient in seen:
        height = parameter.weight.shape[0 if parameter.recipe.formula.by_row else 1]
        dense_body(parameter, gradient, h, const(0, "int64"), height)


def _arguments(recipe: Recipe, dtype: str, rank: int) -> tuple[Any, Any, list[Any]]:
    shape = tuple(T.int64() for _ in range(rank))
    rows = shape if rank == 1 else (T.int64(),)
    shapes = {"element": shape, "row": rows}
    gradient, weight = (buffer(name, shape, dtype) for name in ("gradient", "weight"))
    slots = recipe.formula.slots
    return gradient, weight, [buffer(slot.name, shapes[slot.per], dtype) for slot in slots]


_BODIES: dict[str, Bodies] = {"llvm": _one_by_one, "cuda": cuda_kernels.update_all}


@cache
def _kernel(target: Any, recipe: Recipe, dtype: str, ranks: tuple[int, ...]) -> Any:
    kernel = together_kernel(recipe, dtype, ranks, _BODIES[target.kind.name])
    return runtime.compile_kernel(kernel, target, "dense updates")
