# SPDX-License-Identifier: Apache-2.0
"""What a model must be, alone and beside its encoder: asked before anything is done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from inspect import Parameter, signature
from itertools import combinations
from typing import Any

import tvm
from tvm.relax.frontend import nn

from sparsetrain import runtime
from sparsetrain.embedding import EmbeddingBagCollection
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.kernels.relax_op import find_function
from sparsetrain.models import MODELS, ClickModel
from sparsetrain.system.locks import with_builder_lock

_OF_MODELS = ("config", "export", "initialize", "inputs", "rows_read", "tables")
# Arguments of a constructor that have no name of their own.
_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
# What a ClickModel has on the instance, and of which kind it must stay.
_ITS: dict[str, type] = {"embeddings": EmbeddingBagCollection, "kind": str}


def lacking(model: Any) -> list[str]:
    """What a model, or the class of one, lacks of a model's methods and kind."""
    names = [name for name in _OF_MODELS if not callable(getattr(model, name, None))]
    return names if isinstance(getattr(model, "kind", None), str) else [*names, "kind"]


def require_model(model: Any) -> None:
    """Refuse what is no model, or hides what a model needs; its methods are not called.

    Raises
    ------
    ConfigError
        With what it lacks or hides.
    """
    if isinstance(model, type):
        raise ConfigError(f"model is the class {model.__name__}; make one: {model.__name__}(rows)")
    made = type(model)
    hidden = _hidden(model) if isinstance(model, ClickModel) else []
    if hidden:
        raise ConfigError(
            f"{made.__name__} sets {', '.join(hidden)} on the instance, which hides what a "
            "ClickModel has under that name: take another"
        )
    lacks = lacking(model)
    if lacks:
        raise ConfigError(
            f"a {made.__name__} lacks {', '.join(lacks)} of a model such as "
            "sparsetrain.models.DLRM: make it a sparsetrain.models.ClickModel, which has them; "
            "whatever can be exported trains by sparsetrain.value_and_grad and an optimizer, see "
            "examples/dlrm/train.py"
        )
    if isinstance(model, ClickModel) and "_config" not in vars(model):
        raise ConfigError(f"{made.__name__}: its constructor does not call super().__init__")
    _check_kind(model)


def _check_kind(model: Any) -> None:
    made, kind = type(model), model.kind
    if getattr(made, "kind", None) != kind:
        raise ConfigError(
            f"{made.__name__} sets its kind, {kind!r}, on the instance, but what was saved is "
            f"loaded by that of the class: write kind = {kind!r} in the class"
        )
    ours: Any = MODELS.get(kind)
    if ours is not None and made is not ours:
        raise ConfigError(
            f"{made.__name__} has the kind {kind!r}, which is that of {ours.__name__}: "
            "leave kind out, or choose another"
        )


def _hidden(model: ClickModel) -> list[str]:
    """Names that the instance has something else for; a function may stand for a method."""
    own = vars(model)
    methods = sorted(_methods() & own.keys())
    hidden = [n for n in methods if isinstance(own[n], nn.Module) or not callable(own[n])]
    return hidden + [n for n, its in _ITS.items() if n in own and not isinstance(own[n], its)]


@cache
def _methods() -> frozenset[str]:
    return frozenset(name for name in dir(ClickModel) if callable(getattr(ClickModel, name)))


def require_class(model: Any) -> None:
    """Refuse what is not the class of a model; None passes."""
    if model is not None and not (isinstance(model, type) and not lacking(model)):
        raise ConfigError(f"model is {model!r:.60}; give the class of what was saved, a ClickModel")


def config_of(model: Any) -> dict[str, Any]:
    """What `config` gives, if that is a dict."""
    config = model.config()
    if not isinstance(config, dict):
        raise _not_remade(type(model), f"gives {config!r:.60}")
    return config


def require_remade(model: Any) -> None:
    """Refuse a model that could not be loaded once it is saved: its class and `config` make it.

    Raises
    ------
    ConfigError
        With what `config` lacks or what differs.
    """
    made, config = type(model), config_of(model)
    takes = signature(made).parameters.values()
    lacks = [p.name for p in takes if p.kind not in _REST and p.name not in config]
    if lacks:
        raise _not_remade(made, f"lacks {', '.join(lacks)}, which the constructor takes")
    try:
        saved = json.loads(json.dumps(config, allow_nan=False))
        again = made(**saved)
    except Exception as error:  # whatever the constructor raises
        raise _not_remade(made, f"does not make the model again: {error}") from error
    changed = [*_differing(_listed(config), saved), *_differing(_listed(config_of(again)), saved)]
    if changed:
        raise _not_remade(made, f"is not the same after a way through JSON: {changed[0]!r} differs")
    own, its = getattr(model, "_config", {}), getattr(again, "_config", {})
    if _listed(own) != _listed(its):
        differing = ", ".join(map(str, _differing(own, its)))
        raise _not_remade(made, f"makes a model with another {differing}")
    if again.tables() != model.tables() or _shapes(again) != _shapes(model):
        raise _not_remade(made, "makes a model of other parameters")


def exported(model: Any) -> tvm.IRModule:
    """The module that `export` gives, if arguments of its functions can be told apart by name.

    Raises
    ------
    ConfigError
        With the first name that is there twice.
    """
    module = with_builder_lock(model.export)()
    for function in ("loss", "logits"):
        find_function(module, function)
    return module


def initialized(model: Any, seed: int, fill: bool) -> dict[str, runtime.NDArray]:
    """The parameters that `initialize` gives, as tensors, if they are those of the model.

    Raises
    ------
    ConfigError
        With the first name, shape or dtype that differs.
    """
    made = type(model).__name__
    try:
        signature(model.initialize).bind(seed, fill=fill)
    except TypeError as error:
        raise ConfigError(f"{made}.initialize is called as (seed, fill=...): {error}") from None
    given = model.initialize(seed, fill=fill)
    try:
        params = {name: runtime.as_tensor(array) for name, array in given.items()}
    except (AttributeError, DataError) as error:
        raise ConfigError(f"{made}.initialize gives no dict of arrays: {error}") from error
    wanted = _shapes(model)
    for name in [*wanted, *params] if wanted is not None else ():
        own = _shape(params[name]) if name in params else "nothing"
        its = wanted.get(name, "nothing") if wanted is not None else own
        if own != its:
            raise ConfigError(f"{made}.initialize gives {own} for {name!r}; the model has {its}")
    return params


def check_shared(model: Any, encoder: Any) -> None:
    """Refuse a model that shares other tables than its encoder, by which ids have a meaning.

    Ids that were encoded already have theirs without it, so a model alone may share tables of them.

    Raises
    ------
    ConfigError
        With what to change.
    """
    if encoder is None or not isinstance(model, ClickModel):
        return
    own, its = model.owners(), encoder.owners
    if len(own) != len(its):  # which the first batch is refused for
        return
    for name, ours, wanted in zip(encoder.columns, own, its, strict=True):
        if ours != wanted and not (encoder.encoded and not encoder.share_embedding):
            raise ConfigError(
                f"{type(model).__name__}: {name} {_shares(ours, encoder.columns, name)}, but in "
                f"the encoder it {_shares(wanted, encoder.columns, name)}: give the model "
                "share_embedding=encoder.share_embedding"
            )


def left_out_by_loss(model: Any, names: Sequence[str]) -> ConfigError:
    """The error of parameters that a model's loss does not depend on, in words of `forward`."""
    made = type(model).__name__
    for one, other in _tied(model):
        if one in names or other in names:
            return ConfigError(
                f"{made}: {one} and {other} are one parameter under two names: keep one attribute, "
                "and use that wherever it is needed"
            )
    unused, why = ", ".join(names), "they would never learn"
    fix = "use their layers in forward, or leave them out of the constructor"
    if any(name in model.tables() for name in names):
        unused, why = "embedded", "no table would learn"
        fix = "forward(dense, embedded) has to use embedded"
    return ConfigError(f"{made}: the loss does not depend on {unused}, so that {why}: {fix}")


def _not_remade(made: type, why: str) -> ConfigError:
    return ConfigError(
        f"a {made.__name__} could not be loaded once it is saved, since its config() {why}: return "
        "{**super().config(), ...} with plain values for all that the constructor takes"
    )


def _listed(value: Any) -> Any:
    """A value with lists in place of tuples, as JSON brings it back."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, (list, tuple)) else value


def _differing(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> list[Any]:
    """Keys that one of the two lacks, or under which they differ."""
    missing = object()
    keys = {**one, **other}
    return [key for key in keys if one.get(key, missing) != other.get(key, missing)]


def _shapes(model: Any) -> dict[str, str] | None:
    """Of each parameter dtype and shape; None of a model that does not name them."""
    if not hasattr(model, "named_parameters"):
        return None
    return {name: _shape(param) for name, param in model.named_parameters()}


def _tied(model: Any) -> list[tuple[str, str]]:
    """Pairs of names of one parameter."""
    named = [*model.named_parameters()] if hasattr(model, "named_parameters") else []
    return [
        (one, other)
        for (one, param), (other, same) in combinations(named, 2)
        if one != other and param is same
    ]


def _shape(array: Any) -> str:
    return f"{array.dtype} ({', '.join(str(extent) for extent in array.shape)})"


def _shares(owner: int, columns: Any, name: str) -> str:
    whose = columns[owner]
    return "has a table of its own" if whose == name else f"shares that of {whose}"
