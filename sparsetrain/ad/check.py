# SPDX-License-Identifier: Apache-2.0
"""`check_grads`: compare a gradient with central differences in float64 along random directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparsetrain.errors import NumericalError
from sparsetrain.sparse_tensor import RowSparse


def check_grads(
    program: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[Any, Mapping[str, Any]]],
    params: Mapping[str, np.ndarray],
    inputs: Mapping[str, Any],
    *,
    directions: int = 3,
    step: float = 1e-5,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    seed: int = 0,
) -> None:
    """Compare ``<gradient, direction>`` with a central difference, parameter by parameter.

    Parameters
    ----------
    program : callable
        ``program(params, inputs) -> (loss, gradients)``, such as `sparsetrain.value_and_grad`
        returns.
    params : mapping of str to float64 array
        The point at which to differentiate.
    inputs : mapping
        All other inputs of the program; passed on unchanged.
    directions : int
        Random directions for each parameter.
    step : float
        Half-width of the difference; its error is of order ``step**2``.
    rtol, atol : float
        Allowed difference: ``atol + rtol * |difference quotient|``.

    Raises
    ------
    NumericalError
        If a directional derivative differs; the message names the parameter and both numbers.
    TypeError
        If a parameter is not float64: central differences in float32 prove little.
    """
    rng = np.random.default_rng(seed)
    for name, value in params.items():
        if np.asarray(value).dtype != np.float64:
            raise TypeError(f"check_grads: parameter {name!r} must be float64")
    _, gradients = program(params, inputs)
    for name, gradient in gradients.items():
        dense, at = _as_array(gradient), {**inputs, **params}[name]
        for _ in range(directions):
            direction = rng.standard_normal(dense.shape)
            ahead, behind = (
                _loss(program, {**params, name: at + sign * step * direction}, inputs)
                for sign in (1, -1)
            )
            expected, found = (ahead - behind) / (2 * step), float(np.sum(dense * direction))
            if not abs(found - expected) <= atol + rtol * abs(expected):
                raise NumericalError(
                    f"gradient of {name!r} is wrong: along a random direction it gives {found!r}, "
                    f"central differences give {expected!r}"
                )


def _loss(program: Any, params: Mapping[str, Any], inputs: Mapping[str, Any]) -> float:
    value = program(params, inputs)[0]
    return float(_as_array(value[0] if isinstance(value, tuple) else value))


def _as_array(value: Any) -> np.ndarray:
    dense = value.to_dense() if isinstance(value, RowSparse) else value
    return dense.numpy() if hasattr(dense, "numpy") else np.asarray(dense)
