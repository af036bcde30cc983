# SPDX-License-Identifier: Apache-2.0
"""`RowSparseOptimizer`: every optimizer of `sparsetrain.optim` as a PyTorch optimizer.

Parameters are written in place, in PyTorch's memory. A sparse gradient, such as from
`RowSparseEmbedding` or ``nn.Embedding(sparse=True)``, updates only the rows in its indices; a dense
gradient updates the whole parameter. A step costs one compiled call for each parameter group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.optim import Optimizer
from sparsetrain.optim.gradients import Gradient
from sparsetrain.runtime import NDArray
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.tables.state_dict import check_finite
from sparsetrain.torch.sharing import require_shareable, to_torch, to_tvm
from sparsetrain.torch.tracking import Reader, as_it_is, make_current_


class RowSparseOptimizer(torch.optim.Optimizer):
    """A PyTorch optimizer that updates parameters with an optimizer of this package.

    Parameters
    ----------
    params : iterable of Parameter, of (name, Parameter), or of dict
        Parameters on the CPU, float32 or float64. Names appear in errors, and are matched with the
        patterns of `ParamGroup`. A dict is a parameter group; its ``"lr"`` is read in every step,
        so PyTorch's schedulers work.
    optimizer : Optimizer
        An optimizer from `sparsetrain.optim`; its learning rate must be a number.

    Raises
    ------
    ConfigError
        If a parameter is not on the CPU, a learning rate is a schedule, or `clip_norm` is set with
        several parameter groups.

    Examples
    --------
    >>> table = st.torch.RowSparseEmbedding(1000, 16)  # doctest: +SKIP
    >>> adam = st.optim.adam(0.001)
    >>> optimizer = st.torch.RowSparseOptimizer(
    ...     table.parameters(), adam
    ... )  # doctest: +SKIP
    """

    def __init__(self, params: Iterable[Any], optimizer: Optimizer) -> None:
        lr = optimizer.hyper.get("lr")
        if callable(lr):
            raise ConfigError(
                "RowSparseOptimizer: lr must be a number; schedules are in torch.optim.lr_scheduler"
            )
        self._optimizer = optimizer
        self._groups: list[Group] = []
        super().__init__(params, {} if lr is None else {"lr": lr})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; its ``"lr"``, if any, is the group's learning rate."""
        if self.param_groups and self._optimizer.clip_norm is not None:
            raise ConfigError("RowSparseOptimizer: clip_norm works with one parameter group only")
        super().add_param_group(param_group)
        try:
            with as_it_is():
                group = Group(self.param_groups[-1], self._optimizer)
        except BaseException:
            self.param_groups.pop()
            raise
        self._groups.append(group)
        for name, parameter in group.parameters.items():
            slots = {"step": group.state.count, **group.state[name]}
            self.state[parameter] = {slot: to_torch(tensor) for slot, tensor in slots.items()}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients; writes parameters and slots.

        Raises
        ------
        NumericalError
            If a gradient is not finite; then the gradient's parameter group is unchanged.
        """
        loss = None if closure is None else torch.enable_grad()(closure)()
        with as_it_is():
            for group in self._groups:
                group.step_()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients; PyTorch's method would take 30 us, mostly in its profiler."""
        if not set_to_none:
            super().zero_grad(False)
            return
        for group in self._groups:
            for parameter in group.parameters.values():
                parameter.grad = None

    def flush_(self) -> None:
        """Bring up to date all rows that lag in exact mode, before memory is read directly."""
        for group in self._groups:
            group.state.tables.flush()

    def state_dict(self) -> dict[str, Any]:
        """Return slots and groups as PyTorch's optimizers do, after bringing rows up to date."""
        self.flush_()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a `state_dict`, which has no parameters: load those separately.

        Raises
        ------
        CheckpointError
            If parameters, slots or shapes differ, or a slot is not finite; then nothing is written.
        """
        mine = super().state_dict()
        if _kinds(mine) != _kinds(state_dict):
            raise CheckpointError(
                "RowSparseOptimizer: the state is for a different optimizer, or for parameters "
                "of different shapes"
            )
        check_finite(
            {
                f"{index}:{slot}": tensor.detach().cpu().numpy()
                for index, slots in state_dict["state"].items()
                for slot, tensor in slots.items()
            }
        )
        for index, slots in mine["state"].items():
            for slot, tensor in slots.items():
                tensor.copy_(state_dict["state"][index][slot])
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({key: value for key, value in saved.items() if key != "params"})
        for own in self._groups:
            self._optimizer.restored_(own.state)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a RowSparseOptimizer is not pickled or copied: save its state_dict()")


def _kinds(state_dict: dict[str, Any]) -> Any:
    groups = [group["params"] for group in state_dict["param_groups"]]
    slots = {
        index: {slot: (tensor.shape, tensor.dtype) for slot, tensor in own.items()}
        for index, own in state_dict["state"].items()
    }
    return groups, slots


class Group:
    """A parameter group: its parameters as TVM tensors, and its optimizer state."""

    def __init__(self, group: dict[str, Any], optimizer: Optimizer) -> None:
        names = group.get("param_names") or [f"parameter {n}" for n in range(len(group["params"]))]
        self.parameters = dict(zip(names, group["params"], strict=True))
        for name, parameter in self.parameters.items():
            require_shareable(f"RowSparseOptimizer: {name!r}", parameter)
            make_current_(parameter)  # rows may still lag in a previous optimizer's exact mode
        self.params: dict[str, NDArray] = {n: to_tvm(p) for n, p in self.parameters.items()}
        self.places = {name: p.data_ptr() for name, p in self.parameters.items()}
        if "lr" in group:
            hyper = {**optimizer.hyper, "lr": lambda step: float(group["lr"])}
            optimizer = replace(optimizer, hyper=hyper)
        self.optimizer = optimizer
        self.state = optimizer.init(self.params)
        for name, parameter in self.parameters.items():
            table = self.state.tables.table(name)
            parameter.row_sparse_reader = Reader(table) if table.lags else None

    def step_(self) -> None:
        """Update the parameters that have gradients."""
        given = {n: p for n, p in self.parameters.items() if p.grad is not None}
        for name, parameter in given.items():
            if parameter.data_ptr() != self.places[name]:
                raise ConfigError(
                    f"RowSparseOptimizer: {name!r} was moved, as by .to() or an assignment "
                    "to .data: make a new optimizer"
                )
        if given:
            gradients = {name: _gradient(name, parameter) for name, parameter in given.items()}
            self.optimizer.apply_(self.params, gradients, self.state)
            torch.autograd.graph.increment_version(given.values())


def _gradient(name: str, parameter: torch.Tensor) -> Gradient:
    gradient = parameter.grad
    assert gradient is not None
    if gradient.layout is torch.strided:
        return to_tvm(gradient)
    if gradient.layout is not torch.sparse_coo or gradient.sparse_dim() != 1:
        raise ConfigError(
            f"RowSparseOptimizer: the gradient of {name!r} is sparse, but not by rows"
        )
    indices, values = gradient._indices()[0], gradient._values()
    return RowSparse(
        to_tvm(indices), to_tvm(values.flatten(1)), len(parameter), shape=tuple(parameter.shape)
    )
