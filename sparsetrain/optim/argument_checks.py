# SPDX-License-Identifier: Apache-2.0
"""Validation of parameters, gradients and slots, so that kernels may trust their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsetrain import runtime
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import computed_in, is_half
from sparsetrain.optim.formula import Formula
from sparsetrain.optim.gradients import Gradient
from sparsetrain.optim.state import slot_shape
from sparsetrain.runtime import NDArray
from sparsetrain.sparse_tensor import RowSparse

DTYPES = ("float32", "float64")


def check_arguments(
    formula: Formula,
    params: Mapping[str, NDArray],
    gradients: Mapping[str, Gradient],
    state: Mapping[str, Mapping[str, NDArray]],
) -> None:
    """Check the arguments of a step.

    Raises
    ------
    ConfigError
        If something is missing, is no tensor, has another shape or dtype, or lies elsewhere.
    """
    for name, gradient in gradients.items():
        if name not in params or name not in state:
            raise ConfigError(f"optimizer: no parameter and state for gradient {name!r}")
        _check(formula, name, params[name], gradient, state[name])


def _check(
    formula: Formula,
    name: str,
    param: NDArray,
    gradient: Gradient,
    slots: Mapping[str, NDArray],
) -> None:
    for array in (param,) if isinstance(gradient, RowSparse) else (param, gradient):
        if not isinstance(array, runtime.NDArray):
            raise ConfigError(
                f"optimizer: {name!r} is a {type(array).__name__}; parameters and gradients are "
                "tensors of sparsetrain.runtime.as_tensor"
            )
    (shape, dtype), found = _kind(param), _kind(gradient)
    if is_half(dtype) and not isinstance(gradient, RowSparse):
        raise ConfigError(
            f"optimizer: {name!r} is {dtype} and its gradient is dense; a half takes row-sparse "
            "ones alone: store it in float32, or leave out what makes the gradient dense"
        )
    wanted = shape, computed_in(dtype)
    if found != wanted:
        takes = f", which takes {wanted[1]}" if is_half(dtype) else ""
        raise ConfigError(
            f"optimizer: gradient of {name!r} is {found}, parameter is {(shape, dtype)}{takes}"
        )
    if wanted[1] not in DTYPES:
        raise ConfigError(f"optimizer: {name!r} is {wanted[1]}, not {' or '.join(DTYPES)}")
    for slot in formula.slots:
        shape = slot_shape(slot, wanted[0])
        if slot.name not in slots or _kind(slots[slot.name]) != (shape, wanted[1]):
            raise ConfigError(
                f"optimizer: the state of {name!r} has no {slot.name!r} of shape {shape}; use the "
                "state from this optimizer's init"
            )
    written = gradient.values if isinstance(gradient, RowSparse) else gradient
    lying = {"gradient": written, **{f"slot {slot!r}": tensor for slot, tensor in slots.items()}}
    for what, tensor in lying.items():
        if tensor.device != param.device:
            raise ConfigError(
                f"optimizer: {name!r} lies on {param.device}, its {what} on {tensor.device}: "
                "params = program.place(params) before optimizer.init(params)"
            )


def _kind(array: Any) -> tuple[tuple[int, ...], str]:
    return tuple(map(int, array.shape)), str(array.dtype)
