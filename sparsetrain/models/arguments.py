# SPDX-License-Identifier: Apache-2.0
"""Arguments of models: options from signature and docstring, checks, and plain values.

A constructor's signature is the single source of names, types and defaults: for argument checks,
the command's settings and the list of models. Plain values are values that JSON can hold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from inspect import Parameter, Signature, cleandoc, signature
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import numpy as np

from sparsetrain.data.shared_tables import tables_of
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import check_table_dtype
from sparsetrain.labels.label import Labels, click
from sparsetrain.models.by_feature import check_dim, check_pooling
from sparsetrain.system.argument_checks import is_int, is_number, require_int

# Arguments of `ClickModel` that the encoder determines; its other arguments are options.
OF_DATA = frozenset(
    ("rows", "num_dense", "weighted", "names", "row_weights", "share_embedding")
) | {"labels", "interactions", "numbers", "number_bins", "missing_flags"}

_DIM = 16  # width of a table
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Option(NamedTuple):
    """An argument of a model that users choose."""

    type: Any
    default: Any
    description: str


def _options_of(model: type) -> Mapping[str, Option]:
    """Return the options of a class by name, with base-class options that it accepts as **rest.

    If a base has `_options_of_all`, its subclasses inherit exactly the options named there.
    Positional-only arguments are not options.
    """
    found: dict[str, Option] = {}
    described: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        described |= _descriptions(cls)
    passed_on = True
    for cls in model.__mro__:
        of_all = vars(cls).get("_options_of_all")
        if "__init__" not in vars(cls) or not (passed_on or of_all):
            continue
        arguments = constructor_of(cls, eval_str=True).parameters
        kinds = {argument.kind for argument in arguments.values()}
        passed_on = passed_on and Parameter.VAR_KEYWORD in kinds
        for name, argument in arguments.items():
            own = of_all is None or name in of_all
            if own and argument.kind in _NAMED and name not in OF_DATA | found.keys():
                text = described.get(name, "")
                found[name] = Option(argument.annotation, argument.default, text)
    return MappingProxyType(found)


# Cached, since evaluating the annotations of a class takes as long as making a small model.
options_of: Callable[[type], Mapping[str, Option]] = cache(_options_of)


def _descriptions(cls: type) -> dict[str, str]:
    """Return the description of each name in a docstring's section Parameters."""
    section = cleandoc(cls.__doc__ or "").partition("Parameters\n----------\n")[2]
    section = re.split(r"\n\n\w+\n-{3,}|\n\*\*", section)[0]
    parts = re.split(r"(?m)^(\w[\w, ]*) : .*\n", section)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {n: " ".join(text.split()) for names, text in pairs for n in names.split(", ")}


def constructor_of(model: type, *, eval_str: bool = False) -> Signature:
    """Return the signature of a class's `__init__`, without `self`.

    `inspect.signature` of the class takes that of `Model.__new__` for an inherited `__init__`, up
    to Python 3.10 and some versions of 3.11.
    """
    whole = signature(model.__init__, eval_str=eval_str)  # type: ignore[misc]
    return whole.replace(parameters=[*whole.parameters.values()][1:])


def is_own(model: type) -> bool:
    """Whether a class is one of this package's models."""
    return model.__module__.startswith(f"{__package__}.")


def require_options(model: type, names: Iterable[str]) -> None:
    """Refuse names that are not options of a model.

    Raises
    ------
    ConfigError
        If a name is not an option; the message names the first one and the most similar option.
    """
    if is_own(model):
        known = [*options_of(model)]
    else:  # annotations of a user's class may mean anything
        parameters = constructor_of(model).parameters
        if any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
            return
        known = [*parameters]
    for name in names:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"its options are {', '.join(known)}"
            raise ConfigError(f"{model.__name__} has no option {name!r}; {hint}")


def check_arguments(model: type, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Refuse unknown arguments of this package's models, and widths out of range.

    Iterators are left to the constructor, since they can be read only once.

    Raises
    ------
    ConfigError
        If an argument is invalid; the message names the first one.
    """
    if not is_own(model):
        return
    declared, options = constructor_of(model), options_of(model)
    # Every click model's config has `dim`, even where it has no effect.
    known = OF_DATA | {"dim"} | declared.parameters.keys()
    require_options(model, [name for name in named if name not in known])
    given = declared.bind_partial(*args, **named).arguments
    widths = {name: value for name, value in given.items() if _is_width(options.get(name))}
    check_options(model, {n: v for n, v in widths.items() if not isinstance(v, Iterator)})


def _is_width(option: Option | None) -> bool:
    return option is not None and int in (option.type, *get_args(option.type))


def check_options(model: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as plain values, converted to the types in the signature.

    Raises
    ------
    ConfigError
        If an option has a wrong type or is out of range; the message names the first one.
    """
    declared, cls = options_of(model), model.__name__
    return {n: _checked(f"{cls}: {n}", declared[n].type, value) for n, value in values.items()}


def _checked(what: str, type_: Any, value: Any) -> Any:
    cls, _, name = what.partition(": ")
    if value is None and type(None) in get_args(type_):
        return None
    kinds = get_args(type_) or (type_,)
    if get_origin(type_) is Sequence:
        return check_widths(cls, name, value)
    if isinstance(value, Mapping) and get_origin(kinds[-1]) is Mapping:
        return {
            key: _checked(f"{what} of {key!r}", get_args(kinds[-1])[1], v)
            for key, v in value.items()
        }
    if get_origin(type_) is Literal and value not in kinds:
        raise ConfigError(f"{what} is {value!r}; it must be {' or '.join(map(repr, kinds))}")
    if bool in kinds:
        if not isinstance(value, (bool, np.bool_)):
            raise ConfigError(f"{what} is {value!r}; give True or False")
        return bool(value)
    if int in kinds:
        return require_int(what, value)
    if float in kinds and not (is_number(value) and 0 <= value < 1):
        raise ConfigError(f"{what}: rate is {value!r}; it must be at least 0 and below 1")
    return float(value) if float in kinds else value


def check_config(model: type, arguments: Mapping[str, Any], least_dim: int = 1) -> dict[str, Any]:
    """Return the arguments of `ClickModel` by name, with defaults filled in.

    `least_dim` is the smallest width of a table.

    Raises
    ------
    ConfigError
        If an argument is invalid; the message names the first one.
    """
    cls = model.__name__
    rows, names = check_widths(cls, "rows", arguments["rows"]), arguments["names"]
    if isinstance(names, str):
        raise ConfigError(f"{cls}: names is {names!r}; give a list")
    config = {
        **arguments,
        "rows": rows,
        "num_dense": require_int(f"{cls}: num_dense", arguments["num_dense"], 0),
        "weighted": _checked(f"{cls}: weighted", bool, arguments["weighted"]),
        "names": [f"C{i + 1}" for i in range(len(rows))] if names is None else [*map(str, names)],
        "row_weights": _checked(f"{cls}: row_weights", bool, arguments["row_weights"]),
        "share_embedding": _share(cls, arguments["share_embedding"]),
        "labels": _labels(cls, arguments["labels"]),
        "label_weights": dict(arguments["label_weights"] or {}) or None,
        "number_bins": _bins(cls, arguments["number_bins"]),
        "missing_flags": _checked(f"{cls}: missing_flags", bool, arguments["missing_flags"]),
    }
    check_table_dtype(config["table_dtype"], cls)
    names = config["names"]
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    rules = {
        "rows is empty; it takes at least one table": not rows,
        f"{len(names)} names for {len(rows)} tables": len(names) != len(rows),
        f"names has {repeated!r} twice; names of features must differ": repeated is not None,
    }
    for message, broken in rules.items():  # message -> whether it applies
        if broken:
            raise ConfigError(f"{cls}: {message}")
    tables = _tables_of(cls, config)
    declared = constructor_of(model).parameters.get("dim")
    default = declared.default if declared and is_int(declared.default) else _DIM
    config["dim"] = check_dim(f"{cls}: dim", arguments["dim"], names, tables, default, least_dim)
    config["pooling"] = check_pooling(f"{cls}: pooling", arguments["pooling"], names)
    if config["weighted"] and config["pooling"] != "sum":
        raise ConfigError(f"{cls}: weighted bags need pooling='sum'")
    return config


def check_widths(cls: str, name: str, numbers: Sequence[int]) -> list[int]:
    """Return positive integers as a list.

    Raises
    ------
    ConfigError
        If an item is not a positive integer; the message names the class and the argument.
    """
    items = (
        list(numbers) if np.iterable(numbers) else None
    )  # read only once, since it may be an iterator
    if items is None or not all(map(is_int, items)):
        fix = "; give a list" if is_int(numbers) else ""
        raise ConfigError(f"{cls}: {name} must be whole numbers, not {numbers!r}{fix}")
    widths = [int(number) for number in items]
    if any(width < 1 for width in widths):
        raise ConfigError(f"{cls}: every number in {name} must be 1 or more: {widths}")
    return widths


def require_rows(cls: str, rows: Mapping[str, int], *columns: str) -> None:
    """Refuse a mapping of rows that lacks one of the columns.

    Raises
    ------
    ConfigError
        If `rows` is not a mapping, or lacks a column; the message names the first missing one.
    """
    if not isinstance(rows, Mapping):
        raise ConfigError(
            f"{cls}: rows is {rows!r:.60}; give a dict: dict(zip(encoder.columns, encoder.rows))"
        )
    for column in columns:
        if column not in rows:
            raise ConfigError(f"{cls}: rows has no column {column!r}; it has {', '.join(rows)}")


def plain_value(value: Any) -> Any:
    """Return a value as it is after a round trip through JSON."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain_value(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _labels(cls: str, labels: Mapping[str, Any] | None) -> dict[str, str | int]:
    """Return the kind of each label by name; by default there is one binary label."""
    given = click() if labels is None else Labels(labels, f"{cls}: labels")
    if not given:
        raise ConfigError(f"{cls}: labels is empty; name at least one")
    return given.kinds


def _share(cls: str, share: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return a plain dict of shared tables, or None if every feature has its own table."""
    if share is not None and not isinstance(share, Mapping):
        raise ConfigError(f"{cls}: share_embedding is {share!r:.60}; give a dict of names to names")
    return {str(name): str(owner) for name, owner in share.items()} if share else None


def _bins(cls: str, bins: Any) -> list[list[float]] | None:
    """Return the bin boundaries of each number as plain lists; each list must increase."""
    if bins is None:
        return None
    try:
        found = [[float(cut) for cut in each] for each in bins]
    except (TypeError, ValueError):
        raise ConfigError(f"{cls}: number_bins is {bins!r:.60}; give a list of lists") from None
    for place, cuts in enumerate(found):
        single = np.array(cuts, np.float32)  # as models read them
        if not np.isfinite(single).all() or any(a >= b for a, b in pairwise(single)):
            raise ConfigError(f"{cls}: number_bins[{place}] is {cuts!r:.60}; its numbers must rise")
    return found


def _tables_of(cls: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the name of each feature's table; refuse features with a different number of rows."""
    names, rows = config["names"], config["rows"]
    tables = tables_of(names, config["share_embedding"] or {})
    heights = dict(zip(names, rows, strict=True))
    for name, table in zip(names, tables, strict=True):
        if heights[name] != heights[table]:
            raise ConfigError(
                f"{cls}: {name} has {heights[name]} rows, but shares the table of {table}, which "
                f"has {heights[table]}; give both the same"
            )
    return tables
