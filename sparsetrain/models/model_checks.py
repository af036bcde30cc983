# SPDX-License-Identifier: Apache-2.0
"""Checks of a model before training: its class, saved form, parameters and encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from inspect import Parameter
from itertools import combinations
from typing import Any

import tvm
from tvm import relax

from sparsetrain import runtime
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.errors import ConfigError, DataError, meant, nearest
from sparsetrain.kernels.relax_op import find_function
from sparsetrain.kernels.table_formats import TableFormat, format_of
from sparsetrain.labels import Labels
from sparsetrain.models import MODELS, BatchNorm, ClickModel, Model, kind_of
from sparsetrain.models.arguments import OF_DATA, constructor_of, options_of
from sparsetrain.models.layers import named_modules
from sparsetrain.system.locks import with_builder_lock

_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def model_for(
    model: Any, encoder: Encoder | None, options: Mapping[str, Any], others: Sequence[str]
) -> Any:
    """Return `model`; if it is a class or a name in `MODELS`, construct it for the encoder.

    Parameters
    ----------
    model : Model, class or str
    encoder : Encoder, optional
    options : mapping
        Further arguments of the class.
    others : sequence of str
        Names, besides options, to suggest for an unknown option.

    Raises
    ------
    ConfigError
        If no model has the name, a class is given without an encoder or needs more arguments, or an
        option is unknown or given with a constructed model.
    """
    if isinstance(model, str) and kind_of(model) not in MODELS:
        raise ConfigError(f"there is no model {model!r}; {nearest(model, [*MODELS])}")
    made = MODELS[kind_of(model)] if isinstance(model, str) else model
    is_class = isinstance(made, type) and issubclass(made, Model)
    known = {*OF_DATA, *options_of(made), *constructor_of(made).parameters} if is_class else set()
    for name in (name for name in options if name not in known):
        hint = meant(name, others)
        if hint or not is_class:
            hint = hint or "; give options of the model to its constructor"
            raise ConfigError(f"Trainer has no argument {name!r}{hint}")
    if not is_class:
        return made  # which `require_model` checks
    if encoder is None:
        raise ConfigError(
            f"model is the class {made.__name__}, which needs an encoder: add encoder=..., or "
            f"make a model: {made.__name__}(rows)"
        )
    try:
        return made.for_encoder(encoder, **options)
    except TypeError as error:  # Python's error about an argument without a default
        raise ConfigError(
            f"{made.__name__}.for_encoder(encoder) fails: {error}; make the model with this "
            "argument, and pass the model"
        ) from error


def require_model(model: Any) -> None:
    """Refuse anything but a constructed `Model`.

    Raises
    ------
    ConfigError
        If it is not a constructed `Model`, or has the kind of a different class.
    """
    if isinstance(model, type):
        raise ConfigError(f"model is the class {model.__name__}; make one: {model.__name__}(rows)")
    cls = type(model)
    if not isinstance(model, Model):
        raise ConfigError(
            f"a {cls.__name__} is not a sparsetrain.models.Model, which Trainer needs: derive it "
            "from that; a module that is not a Model can be trained in a loop of your own by "
            "sparsetrain.value_and_grad and an optimizer, see examples/dlrm/train.py"
        )
    if "_columns" not in vars(model):
        raise ConfigError(f"{cls.__name__}: its constructor does not call super().__init__")
    owner: type = MODELS.get(cls.kind, cls)
    if owner is not cls:
        raise ConfigError(
            f"{cls.__name__} has the kind {cls.kind!r}, which is {owner.__name__}'s: "
            "leave it out, or choose a new one"
        )


def require_class(model: Any) -> None:
    """Refuse anything but a subclass of `Model`; None is accepted."""
    is_class = isinstance(model, type) and issubclass(model, Model)
    if model is not None and (not is_class or model in (Model, ClickModel)):
        raise ConfigError(f"model is {model!r:.60}; give the class of the saved model")


def config_of(model: Model) -> dict[str, Any]:
    """Return the model's `config()`, if it is a dict."""
    config = model.config()
    if not isinstance(config, dict):
        raise _not_loadable(type(model), f"gives {config!r:.60}")
    return config


def table_format_of(model: Any) -> TableFormat:
    """Return the format in which a model's tables are stored.

    Raises
    ------
    ConfigError
        If `model` is not a `Model`; the message says how to make one.
    """
    require_model(model)
    return format_of(str(config_of(model).get("table_dtype", "float32")))


def require_loadable(model: Model) -> None:
    """Refuse a model that its class cannot make again from its config, stored as JSON.

    Raises
    ------
    ConfigError
        If an argument is missing from the config or differs; the message names it.
    """
    cls, config = type(model), config_of(model)
    arguments = constructor_of(cls).parameters.values()
    missing = [a.name for a in arguments if a.kind not in _VARIADIC and a.name not in config]
    if missing:
        raise _not_loadable(cls, f"lacks {', '.join(missing)}, which the constructor takes")
    try:
        loaded = cls(**json.loads(json.dumps(config, allow_nan=False)))
    except Exception as error:  # whatever the constructor raises
        raise _not_loadable(cls, f"does not make the model again: {error}") from error
    before, after = ({**Model.config(m), **_as_json(config_of(m))} for m in (model, loaded))
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            raise _not_loadable(cls, f"makes a model with a different {name}")
    if loaded.tables() != model.tables() or _shapes(loaded) != _shapes(model):
        raise _not_loadable(cls, "makes a model with different parameters")


def export_checked(model: Model) -> tvm.IRModule:
    """Export a model, and refuse a module that would score a row by its whole batch.

    Raises
    ------
    ConfigError
        If a function uses batch norm with the statistics of the batch, or `export` fails.
    """
    module = with_builder_lock(model.export)()
    for function in model.functions:
        _require_no_batch_statistics(type(model), find_function(module, function))
    return module


def _require_no_batch_statistics(cls: type, function: relax.Function) -> None:
    """Refuse batch norm in training: its running statistics would never move."""
    for binding in (binding for block in function.body.blocks for binding in block.bindings):
        call = binding.value
        is_norm = isinstance(call, relax.Call) and call.op == tvm.ir.Op.get("relax.nn.batch_norm")
        if is_norm and bool(call.attrs["training"]):
            raise ConfigError(
                f"{cls.__name__}: batch_norm with training=True does not update its running "
                "statistics here, and the score of a row would depend on the rest of its batch: "
                "use models.BatchNorm or layer_norm"
            )


def norm_of_rows(model: Model) -> str | None:
    """Return the name of the first `BatchNorm` over the rows of a batch, or None."""
    norms = ((name, layer) for name, layer in named_modules(model) if isinstance(layer, BatchNorm))
    return next((name for name, layer in norms if layer.by_row), None)


def require_several_rows(norm: str | None, rows: int, parts: int) -> None:
    """Refuse to normalize parts of a batch that have one row.

    Raises
    ------
    ConfigError
        If a batch of `rows` rows leaves a part with one row; the message names the layer `norm`.
    """
    if norm is not None and rows // parts < 2:
        cut = f" in {parts} parts (accumulate, or ranks)" if parts > 1 else ""
        raise ConfigError(
            f"{norm}: batch norm has no variance of one row: a batch of {rows}{cut} must leave 2 "
            "rows or more to each part"
        )


def initialize_checked(model: Model, seed: int, fill: bool) -> dict[str, runtime.NDArray]:
    """Run `initialize`; return its arrays as tensors if they fit the model's parameters.

    Raises
    ------
    ConfigError
        If a name, a shape or a dtype differs; the message names the first such parameter.
    """
    name = type(model).__name__
    arrays = model.initialize(seed, fill=fill)
    try:
        params = {name: runtime.as_tensor(array) for name, array in arrays.items()}
    except (AttributeError, DataError) as error:
        raise ConfigError(f"{name}.initialize must return a dict of arrays: {error}") from error
    expected, actual = _shapes(model), {key: _shape(param) for key, param in params.items()}
    for key in {**expected, **actual}:
        own, wanted = actual.get(key, "nothing"), expected.get(key, "nothing")
        if own != wanted:
            raise ConfigError(f"{name}.initialize gives {own} for {key!r}; the model has {wanted}")
    return params


def check_labels_of(model: Model, encoder: Encoder | None) -> None:
    """Refuse a model if its labels differ from its encoder's; a single label may be renamed.

    Raises
    ------
    ConfigError
        If the labels differ; the message lists both.
    """
    if encoder is None or not model.all_labels:
        return
    own, read = model.all_labels, encoder.schema.all_labels
    if own != read and not (own.only and own.only == read.only):
        raise ConfigError(
            f"{type(model).__name__}: its labels are {_listed(own)}, the encoder's "
            f"{_listed(read)}: give the model labels=encoder.labels"
        )


def _listed(labels: Labels) -> str:
    return ", ".join(f"{name} ({label})" for name, label in labels.items())


def check_group_feature(model: Model, group_by: str | None) -> None:
    """Refuse a name that is not a feature with one id per row.

    Raises
    ------
    ConfigError
        If the model has no such feature.
    """
    names = model.single_ids()
    if group_by is not None and not model.all_labels:
        raise ConfigError(
            "group_by is for scores of labels, but this model has no labels: remove group_by"
        )
    if group_by is not None and group_by not in names:
        raise ConfigError(
            f"group_by is {group_by!r}; it must be one of the features, {', '.join(names)}"
        )


def unused_parameters_error(model: Model, names: Sequence[str]) -> ConfigError:
    """Return the error for parameters that a model's loss does not depend on."""
    cls = type(model).__name__
    for (one, param), (other, same) in combinations(model.named_parameters(), 2):
        if one != other and param is same and not {one, other}.isdisjoint(names):
            return ConfigError(
                f"{cls}: {one} and {other} are one parameter under two names: keep one attribute, "
                "and use that wherever it is needed"
            )
    if model.all_fields is not None and not model.tables().keys().isdisjoint(names):
        return ConfigError(
            f"{cls}: the loss does not depend on embedded, so that no table would learn: "
            "forward(dense, embedded) has to use embedded"
        )
    return ConfigError(
        f"{cls}: the loss does not depend on {', '.join(names)}, so that they would never learn: "
        "use their layers in forward, or leave them out of the constructor"
    )


def _not_loadable(cls: type, reason: str) -> ConfigError:
    return ConfigError(
        f"a {cls.__name__} could not be loaded once it is saved, since its config() {reason}: "
        "return {**super().config(), ...} with plain values for all that the constructor takes"
    )


def _as_json(value: Any) -> Any:
    """Convert tuples to lists, as a round trip through JSON does."""
    if isinstance(value, Mapping):
        return {key: _as_json(item) for key, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def _shapes(model: Model) -> dict[str, str]:
    """Return the dtype and shape of each parameter."""
    return {name: _shape(param) for name, param in model.named_parameters()}


def _shape(array: Any) -> str:
    return f"{array.dtype} ({', '.join(str(extent) for extent in array.shape)})"
