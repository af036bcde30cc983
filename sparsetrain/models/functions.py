# SPDX-License-Identifier: Apache-2.0
"""Functions that a `Model` exports: their arguments by name, and checks of their results.

A method gets each feature as an argument of the same name. If a model has buffers, the exported
loss returns their new values too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

from tvm.relax.frontend import nn
from tvm.sym import Analyzer

from sparsetrain.embedding.ragged_tensor import RaggedTensor
from sparsetrain.errors import ConfigError
from sparsetrain.models.features import Specs
from sparsetrain.models.layers import FIRST_ROW, KEY, training

OF_LOSS = ("labels", "row_weights")  # arguments of a loss besides features
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
# Exported function -> the method that defines it.
METHODS = {"loss": "loss", "logits": "forward", "query": "query", "items": "items"}


def by_name(method: Callable[..., Any], inputs: Mapping[str, nn.spec.Tensor]) -> nn.spec.MethodSpec:
    """Specify a method for export, with inputs by name since some may be absent."""
    names, specs = list(inputs), list(inputs.values())

    def named(*inputs: nn.Tensor) -> Any:
        return method(**dict(zip(names, inputs, strict=True)))

    return nn.spec.MethodSpec(named, names, specs, "plain", "plain")


def method_spec(model: Any, function: str) -> nn.spec.MethodSpec:
    """Specify a function for export, with the features and labels that its method takes."""
    method, names = getattr(model, METHODS[function]), arguments_of(model, function)
    kinds = {**model.features, **(model.prepared if function == "loss" else {})}
    specs: Specs = {}
    for name in names:
        if name in kinds:
            specs |= kinds[name].specs(name, model.rows_of(kinds[name]))
        elif name == "labels":
            specs["labels"] = label_spec(model)
        elif model.row_weights:
            specs["row_weights"] = nn.spec.Tensor(["B"], "float32")
    if function == "loss" and model.has_dropout:
        specs |= dict.fromkeys((KEY, FIRST_ROW), nn.spec.Tensor([1], "int64"))

    def exported(**tensors: nn.Tensor) -> nn.Tensor:
        values = {n: kinds[n].value(n, tensors) for n in names if n in kinds}
        values |= {name: tensors[name] for name in OF_LOSS if name in tensors}
        return _check_result(model, function, method(**values), values)

    if function == "loss":
        return by_name(lambda **tensors: in_training(model, exported, tensors), specs)
    return by_name(exported, specs)


def arguments_of(model: Any, function: str) -> list[str]:
    """Names of a function's arguments: features, labels and weights of rows.

    An argument with a default may name a feature that the model lacks.
    """
    method = METHODS[function]
    if function == "loss" and not model.defines("loss"):
        more = ["row_weights"] if model.row_weights else []
        return ["labels", *arguments_of(model, "logits"), *more]
    parameters = signature(getattr(model, method)).parameters.values()
    known = {*model.features, *model.prepared, *(OF_LOSS if function == "loss" else ())}
    variable = any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    named = (p for p in parameters if p.kind not in _VARIABLE)
    names = [p.name for p in named if p.default is Parameter.empty or p.name in known]
    if variable:
        names += [name for name in model.features if name not in names]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{type(model).__name__}.{method} takes {name!r}, which is not one of its "
                f"features: {', '.join(sorted(known))}"
            )
    return names


def label_spec(model: Any) -> nn.spec.Tensor:
    """Return the type of the labels: (B,), or (B, T) if there are several."""
    count = len(model.all_labels)
    return nn.spec.Tensor(["B"] if count == 1 else ["B", count], "float32")


def in_training(
    model: Any, loss: Callable[..., Any], tensors: Mapping[str, nn.Tensor]
) -> nn.Tensor | tuple[nn.Tensor, ...]:
    """Return the loss with layers in training mode, then the new values of buffers."""
    given = dict(tensors)
    with training(given.pop(KEY, None), given.pop(FIRST_ROW, None)) as mode:
        found = loss(**given)
    params = dict(model.named_parameters())
    updates = [mode.updates.get(params[name], params[name]) for name in model.buffers()]
    return (*(found if isinstance(found, tuple) else (found,)), *updates) if updates else found


def check_logits(model: Any, logits: nn.Tensor, of: str, rows: Any) -> nn.Tensor:
    """Return the result of `forward`, if it has the shape (B, S)."""
    cls, count = type(model).__name__, model.num_logits
    if not isinstance(logits, nn.Tensor):
        raise ConfigError(
            f"{cls}: forward gave {logits!r:.60}; return the logits, an nn.Tensor (B, {count})"
        )
    shape = list(logits.shape)
    same = len(shape) == 2 and Analyzer().can_prove_equal(shape[0], rows)
    if not same or not isinstance(shape[1], int) or shape[1] != count:
        raise ConfigError(
            f"{cls}: forward gave the shape ({', '.join(map(str, shape))}), not (B, {count}) "
            f"with B as in {of}.shape[0]: nn.op.reshape(logits, ({of}.shape[0], {count}))"
        )
    return logits


def _check_result(model: Any, function: str, result: Any, values: Mapping[str, Any]) -> nn.Tensor:
    if function == "logits":
        return check_logits(model, result, *batch_extent(values))
    rank = 0 if function == "loss" else 2
    if not isinstance(result, nn.Tensor) or len(result.shape) != rank:
        wanted = "the mean loss, a () tensor" if rank == 0 else "(B, D) or (V, D) vectors"
        raise ConfigError(
            f"{type(model).__name__}: {METHODS[function]} gave {_describe(result)}; return {wanted}"
        )
    return result


def batch_extent(values: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name of an argument with the batch as first axis, and that axis's length."""
    name, value = next(iter(values.items()))
    if isinstance(value, RaggedTensor):
        return f"{name}.ends", value.ends.shape[0]
    return name, value.shape[0]


def _describe(result: Any) -> str:
    if isinstance(result, nn.Tensor):
        return f"the shape ({', '.join(map(str, result.shape))})"
    return f"{result!r:.60}"
