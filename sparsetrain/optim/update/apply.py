# SPDX-License-Identifier: Apache-2.0
"""`Optimizer.apply_`: a step with computed gradients, from the checks to the result.

The update is a `Step` of the gradients' backend, cached in the state by the gradients' names and
kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Protocol

from sparsetrain import runtime
from sparsetrain.compiler.precision.loss_scale import Scale
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.optim.gradients import Gradient, coalesced, global_norm, nonfinite
from sparsetrain.optim.result import StepResult, skip_step
from sparsetrain.optim.state import RuleSource, State
from sparsetrain.optim.state_factory import ASSIGNMENT, adopt_state_
from sparsetrain.runtime import NDArray
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.system.argument_checks import require_mapping
from sparsetrain.tables.collection import weights_of
from sparsetrain.tables.formula import Formula
from sparsetrain.tables.slots import slot_shape

DTYPES = ("float32", "float64")


class Step(Protocol):
    """Takes steps on one state with gradients of the same names and kinds."""

    machines: Sequence[Any]  # virtual machines that run the step

    def run_(
        self,
        params: Mapping[str, NDArray],
        gradients: Mapping[str, Gradient],
        state: State,
        loss: NDArray | None,
        scale: Scale,
    ) -> tuple[NDArray | None, StepResult]:
        """Take a step; return the loss on the host, and the result.

        Raises
        ------
        ConfigError, DataError, NumericalError
            As in `Optimizer.apply_`; nothing is written then.
        """
        ...


def apply_(
    optimizer: RuleSource,
    params: Mapping[str, NDArray],
    gradients: Mapping[str, Gradient],
    state: State,
    loss: NDArray | None,
    scale: Scale,
    norm_of: Callable[[Mapping[str, Gradient]], float] = global_norm,
) -> tuple[NDArray | None, StepResult]:
    """Take a step; return the loss on the host, and the result. See `Optimizer.apply_`."""
    require_mapping("optimizer: params", params)
    require_mapping("optimizer: gradients", gradients)
    params = weights_of(params)
    key = _kinds_of(gradients, loss)
    step: Step | None = None  # reused from a step with equal kinds and rules
    if isinstance(state, State) and state.owner is optimizer:
        step = state.update_steps.get(key)
    if step is None:
        check_arguments(optimizer.full_formula, params, gradients, state)
        adopt_state_(optimizer, params, state)
    if scale.factor != 1 and not state.scaled and optimizer.clip_norm is None:
        raise ConfigError(
            "optimizer: gradients with a scale need a state made by init(..., scaled=True)"
        )
    if optimizer.clip_norm is not None:
        given, gradients = gradients, coalesced(gradients)
        clipped = {n: g for n, g in gradients.items() if n not in state.buffers}
        limited = scale.clipped(norm_of(clipped), optimizer.clip_norm)
        if not isfinite(limited.norm or 0.0):  # the sum of finite duplicates may overflow
            problem = nonfinite(loss, given) or "the global norm is not finite"
            return loss, skip_step(state, problem, scale, loss)
        scale = limited
    if step is None:
        step = state.backend.update_step(params, gradients, state, loss, key)
        state.update_steps[key] = step
    return step.run_(params, gradients, state, loss, scale)


def _kinds_of(gradients: Mapping[str, Gradient], loss: NDArray | None) -> tuple[Any, ...]:
    """Return a step's key: names and kinds of its gradients, with the shapes of row-sparse ones."""
    kinds = [
        (name, gradient.shape, gradient.indices.dtype, gradient.source is None)
        if isinstance(gradient, RowSparse)
        else (name, type(gradient))
        for name, gradient in gradients.items()
    ]
    return (*kinds, None if loss is None else (loss.dtype, len(loss.shape)))


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
        If a value is missing, not a tensor, on the wrong device, or has the wrong shape or dtype.
    """
    for name, gradient in gradients.items():
        if name not in params or name not in state:
            raise ConfigError(f"optimizer: no parameter and state for gradient {name!r}")
        is_buffer = name in getattr(state, "buffers", ())
        own = ASSIGNMENT.formula if is_buffer else formula
        _check_argument(own, name, params[name], gradient, state[name])


def _check_argument(
    formula: Formula,
    name: str,
    param: NDArray,
    gradient: Gradient,
    slots: Mapping[str, NDArray],
) -> None:
    for array in (param,) if isinstance(gradient, RowSparse) else (param, gradient):
        if not isinstance(array, runtime.NDArray):
            raise ConfigError(
                f"optimizer: {name!r} is a {type(array).__name__}; convert parameters and "
                "gradients with sparsetrain.runtime.as_tensor"
            )
    (shape, dtype), found = _shape_and_dtype(param), _shape_and_dtype(gradient)
    stored = format_of(dtype)
    if not isinstance(gradient, RowSparse):
        stored.require_dense(name)
    numbers = (*shape[:-1], stored.width(shape[-1])) if shape else shape
    wanted = numbers, stored.computed
    if found != wanted:
        takes = f", which takes {stored.computed}" if stored.computed != dtype else ""
        raise ConfigError(
            f"optimizer: gradient of {name!r} is {found}, but parameter is {(shape, dtype)}{takes}"
        )
    if wanted[1] not in DTYPES:
        raise ConfigError(f"optimizer: {name!r} is {wanted[1]}, not {' or '.join(DTYPES)}")
    for slot in formula.slots:
        shape = slot_shape(slot, wanted[0])
        if slot.name not in slots or _shape_and_dtype(slots[slot.name]) != (shape, wanted[1]):
            raise ConfigError(
                f"optimizer: the state of {name!r} has no {slot.name!r} of shape {shape}; use the "
                "state from this optimizer's init"
            )
    written = gradient.values if isinstance(gradient, RowSparse) else gradient
    lying = {"gradient": written, **{f"slot {slot!r}": tensor for slot, tensor in slots.items()}}
    for what, tensor in lying.items():
        if tensor.device != param.device:
            raise ConfigError(
                f"optimizer: {name!r} is on {param.device}, but its {what} is on "
                f"{tensor.device}: params = program.place(params) before optimizer.init(params)"
            )


def _shape_and_dtype(array: Any) -> tuple[tuple[int, ...], str]:
    return tuple(map(int, array.shape)), str(array.dtype)
