# SPDX-License-Identifier: Apache-2.0
"""`from_torch`: import a PyTorch module as a model with row-sparse gradients for its tables.

PyTorch exports the module, TVM's importer turns the export into Relax, and `translations` handles
operators that the importer lacks or would change. Predictions are compared with PyTorch's before
the model is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.compiler.program import Program
from sparsetrain.errors import ConfigError, DataError

if TYPE_CHECKING:
    import torch
    import tvm

TOLERANCE = 1e-4  # absolute and relative difference between our predictions and PyTorch's


@dataclass(frozen=True)
class ImportedModel:
    """A PyTorch module as Relax functions: ``"loss"``, and ``"predict"`` if a loss was passed.

    Parameters
    ----------
    module : torch.nn.Module
        The imported module; only `to_torch_` changes it.
    functions : tvm.IRModule
        The module's functions in Relax.
    trainable : list of str
        Names of the parameters that require gradients, as in ``module.named_parameters()``.
    names : tuple of str
        Names of the module's inputs, then of its labels.
    offsets : mapping of str to str
        Name of an input with offsets of bags -> name of the input with the bags' ids.
    draws : bool
        Whether the loss uses dropout, and so also takes the `dropout_inputs` of a step.
    """

    module: torch.nn.Module
    functions: tvm.IRModule
    trainable: list[str]
    names: tuple[str, ...]
    offsets: Mapping[str, str]
    draws: bool

    def export(self) -> tvm.IRModule:
        """Return the functions, for `sparsetrain.value_and_grad` and `sparsetrain.Program`."""
        return self.functions

    def initialize(self) -> dict[str, runtime.NDArray]:
        """Return a copy of the module's current weights, by name."""
        return {
            name: runtime.as_tensor(parameter.detach().cpu().numpy())
            for name, parameter in self.module.named_parameters()
        }

    def inputs(self, *arrays: Any, seed: int = 0, step: int = 0) -> dict[str, np.ndarray]:
        """Return the module's inputs, followed by the labels of its loss, by name.

        Parameters
        ----------
        *arrays : PyTorch tensors or arrays
        seed, step : int
            Determine the dropout mask.

        Raises
        ------
        DataError
            If there are too many arrays, or offsets do not fit their ids.
        """
        if len(arrays) > len(self.names):
            raise DataError(f"got {len(arrays)} inputs, but the model has {len(self.names)}")
        named = {n: np.asarray(array) for n, array in zip(self.names, arrays, strict=False)}
        for offsets, ids in self.offsets.items():
            ends = np.append(named[offsets], named[ids].size)
            if ends[0] != 0 or (np.diff(ends) < 0).any():
                raise DataError(f"input {offsets!r} must rise from 0 to the number of {ids!r}")
        if self.draws:
            from sparsetrain.models.layers import dropout_inputs

            named |= dropout_inputs(seed, step, 0)
        return named

    def to_torch_(self, params: Mapping[str, runtime.NDArray]) -> None:
        """Write the weights in `params` back into the PyTorch module."""
        for name, parameter in self.module.named_parameters():
            array = np.array(runtime.as_numpy(params[name]))
            parameter.data.copy_(parameter.data.new_tensor(array))


def from_torch(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    labels: Sequence[torch.Tensor] = (),
    loss: Callable[..., torch.Tensor] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> ImportedModel:
    """Import a PyTorch module as a model of this package.

    Dropout is active if the module is in training mode. Batch norm must be in evaluation mode.

    Parameters
    ----------
    module : torch.nn.Module
        The module, on the CPU; it is not changed.
    inputs, labels : sequence of torch.Tensor
        An example batch of at least 2 rows.
    loss : callable, optional
        PyTorch function that takes the module's result and the labels and returns a scalar; without
        it, the module's result is the loss.
    dynamic_shapes : optional
        As in `torch.export.export`, for inputs followed by labels; by default, only the first axis
        of each may vary.

    Returns
    -------
    ImportedModel

    Raises
    ------
    ConfigError
        If PyTorch cannot export the module, or a node has no translation; the message names the
        node.

    Examples
    --------
    >>> model = st.from_torch(module, (ids,), (clicks,), loss)  # doctest: +SKIP
    >>> program = st.value_and_grad(model.export(), "loss", model.trainable)  # doctest: +SKIP
    """
    try:
        from sparsetrain.torch import importing
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError("from_torch needs PyTorch: pip install 'sparsetrain[torch]'") from None
    model = ImportedModel(*importing.imported(module, inputs, labels, loss, dynamic_shapes))
    if loss is not None:
        _require_same(model, inputs, dynamic_shapes)
    return model


def _require_same(
    model: ImportedModel, inputs: Sequence[torch.Tensor], dynamic_shapes: Any
) -> None:
    """Refuse a translation if its predictions differ from PyTorch's.

    Raises
    ------
    ConfigError
        If they differ; the message gives the difference and the first exported node that differs.
    """
    from sparsetrain.torch import importing

    wanted = importing.prediction(model.module, inputs)
    named = model.inputs(*inputs)
    params = model.initialize()
    found = runtime.as_numpy(Program(model.functions, "predict")(params, named))
    if np.isclose(found, wanted, TOLERANCE, TOLERANCE).all():
        return
    functions, values = importing.every_value(model.module, inputs, model.names, dynamic_shapes)
    each = Program(functions, "values")(params, named)
    first = next((n for n, v in zip(values, each, strict=True) if _differs(v, values[n])), None)
    which = "" if first is None else f"; the first that differs is {first.name!r}, {first.target}"
    raise ConfigError(
        f"from_torch: predictions of the translated {type(model.module).__name__} differ from "
        f"PyTorch's by {np.abs(found - wanted).max():.2g} on the example: an operator is "
        f"translated wrongly{which}"
    )


def _differs(found: runtime.NDArray, wanted: np.ndarray) -> bool:
    array = runtime.as_numpy(found)
    same = array.shape == wanted.shape
    return not same or not np.isclose(array, wanted, TOLERANCE, TOLERANCE, equal_nan=True).all()
