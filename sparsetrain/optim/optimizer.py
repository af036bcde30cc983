# SPDX-License-Identifier: Apache-2.0
"""`Optimizer`: a formula and its numbers, applied to a mix of dense and row-sparse gradients.

One object for the whole model. A dense gradient updates the whole parameter, a `RowSparse` one the
rows it names; both in place. Cost of a row-sparse update: N ids to sort and U rows to read and
write, whatever the table's rows.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache
from math import prod
from numbers import Real
from typing import Any

from sparsetrain import runtime
from sparsetrain.errors import ConfigError
from sparsetrain.optim.formula import Formula, Slot, check_formula
from sparsetrain.optim.kernels import dense_update_kernel, row_update_kernel
from sparsetrain.runtime import NDArray
from sparsetrain.sparse_tensor import RowSparse

State = dict[str, dict[str, NDArray]]

DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Optimizer:
    """An update rule with its hyper-parameters; the state lives outside, in `State`.

    Parameters
    ----------
    formula : Formula
        The rule.
    hyper : mapping of str to float
        Its hyper-parameters, passed to the kernels as numbers: changing one compiles nothing.

    Examples
    --------
    >>> import sparsetrain as st
    >>> optimizer = st.optim.adagrad(0.02)
    >>> state = optimizer.init(params)  # doctest: +SKIP
    >>> optimizer.apply_(params, gradients, state)  # doctest: +SKIP
    """

    formula: Formula
    hyper: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, value in self.hyper.items():
            number = isinstance(value, Real) and not isinstance(value, bool)
            if not (number and 0 <= value < float("inf")):
                raise ConfigError(
                    f"{self.formula.name}: {name} must be finite and 0 or more, not {value!r}"
                )
        object.__setattr__(self, "hyper", {name: float(v) for name, v in self.hyper.items()})
        check_formula(self.formula, self.hyper)

    def init(self, params: Mapping[str, NDArray]) -> State:
        """Allocate the slots of each parameter.

        Raises
        ------
        ResourceError
            If there is no memory for a slot; names the parameter and the bytes.
        """
        return {
            name: {slot.name: _new_slot(name, slot, param) for slot in self.formula.slots}
            for name, param in params.items()
        }

    def apply_(
        self,
        params: Mapping[str, NDArray],
        gradients: Mapping[str, NDArray | RowSparse],
        state: MutableMapping[str, dict[str, NDArray]],
    ) -> None:
        """Take one step: writes into the tensors of `params` and `state`.

        Of a parameter with a row-sparse gradient only the rows named by its indices are written;
        duplicates are summed first.

        Parameters
        ----------
        params : mapping of str to Tensor
            Parameters of any shape; tables are (V, D).
        gradients : mapping of str to Tensor or RowSparse
            For some or all of the parameters.
        state : mapping
            From `init`.

        Raises
        ------
        ConfigError
            If a gradient has no parameter or state, or another shape or dtype; nothing is
            written then.
        """
        for name, gradient in gradients.items():
            if name not in params or name not in state:
                raise ConfigError(f"optimizer: no parameter and state for gradient {name!r}")
            self._check(name, params[name], gradient, state[name])
        for name, gradient in gradients.items():
            update = self._rows_ if isinstance(gradient, RowSparse) else self._dense_
            update(params[name], gradient, state[name])

    def _check(
        self, name: str, param: NDArray, gradient: NDArray | RowSparse, slots: Mapping[str, NDArray]
    ) -> None:
        """Make sure that the kernels may trust the shapes they are given."""
        for array in (param,) if isinstance(gradient, RowSparse) else (param, gradient):
            if not isinstance(array, runtime.NDArray):
                raise ConfigError(
                    f"optimizer: {name!r} is a {type(array).__name__}; parameters and gradients "
                    "are tensors of sparsetrain.runtime.as_tensor"
                )
        wanted, found = _kind(param), _kind(gradient)
        if found != wanted:
            raise ConfigError(f"optimizer: gradient of {name!r} is {found}, parameter is {wanted}")
        if wanted[1] not in DTYPES:
            raise ConfigError(f"optimizer: {name!r} is {wanted[1]}, not {' or '.join(DTYPES)}")
        for slot in self.formula.slots:
            shape = _slot_shape(slot, wanted[0])
            if slot.name not in slots or _kind(slots[slot.name]) != (shape, wanted[1]):
                raise ConfigError(
                    f"optimizer: the state of {name!r} has no {slot.name!r} of shape {shape}; use "
                    "the state from this optimizer's init"
                )

    def _rows_(self, param: NDArray, gradient: RowSparse, slots: dict[str, NDArray]) -> None:
        plan = gradient.plan()
        if not plan.num_unique:
            return
        kernel = _row_kernel(
            self.formula,
            tuple(self.hyper),
            gradient.width,
            gradient.dtype,
            str(plan.rows.dtype),
            gradient.source is not None,
        )
        source = plan.order if gradient.source is None else gradient.source
        table = (gradient.num_rows, gradient.width)
        kernel(
            plan.rows,
            plan.order,
            plan.offsets,
            source,
            gradient.values,
            param._create_view(table),
            *self._slot_views(slots, *table),
            *self.hyper.values(),
        )

    def _dense_(self, param: NDArray, gradient: NDArray, slots: dict[str, NDArray]) -> None:
        rows, columns = _matrix_shape(self.formula, tuple(map(int, param.shape)))
        kernel = _dense_kernel(self.formula, tuple(self.hyper), str(param.dtype))
        kernel(
            param._create_view((rows, columns)),
            gradient._create_view((rows, columns)),
            *self._slot_views(slots, rows, columns),
            *self.hyper.values(),
        )

    def _slot_views(self, slots: dict[str, NDArray], rows: int, columns: int) -> list[NDArray]:
        shapes = {"element": (rows, columns), "row": (rows,)}
        return [slots[slot.name]._create_view(shapes[slot.per]) for slot in self.formula.slots]


def _matrix_shape(formula: Formula, shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a dense parameter, as the kernel and the row slots see it."""
    if formula.row_mean is None and all(slot.per == "element" for slot in formula.slots):
        return 1, prod(shape)
    return (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (prod(shape), 1)


def _kind(array: NDArray | RowSparse) -> tuple[tuple[int, ...], str]:
    return tuple(map(int, array.shape)), str(array.dtype)


def _slot_shape(slot: Slot, shape: tuple[int, ...]) -> tuple[int, ...]:
    by_row = slot.per == "row" and len(shape) > 1
    return (prod(shape[:-1]),) if by_row else shape


def _new_slot(name: str, slot: Slot, param: NDArray) -> NDArray:
    shape = _slot_shape(slot, tuple(map(int, param.shape)))
    tensor = runtime.empty(shape, str(param.dtype), f"slot {slot.name!r} of parameter {name!r}")
    runtime.as_numpy(tensor, writable=True)[...] = slot.initial
    return tensor


@cache
def _row_kernel(*variant: Any) -> Any:
    return runtime.compile_kernel(row_update_kernel(*variant), runtime.host_target())


@cache
def _dense_kernel(*variant: Any) -> Any:
    return runtime.compile_kernel(dense_update_kernel(*variant), runtime.host_target())
