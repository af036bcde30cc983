# SPDX-License-Identifier: Apache-2.0
"""Strict reader of TOML and JSON schema files, driven by the types of dataclass fields; a writer.

An unknown key is an error that suggests the nearest one; a value of the wrong type, one that names
the type expected. Every message begins with the key's path.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from sparsetrain.errors import ConfigError, first_line
from sparsetrain.system.argument_checks import is_number, require_int
from sparsetrain.system.regular_files import read_regular_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


Table = TypeVar("Table")
_MAX_BYTES = 16 << 20
# Evaluating the annotations of a class takes 50 us.
_field_types: Callable[[type], dict[str, Any]] = cache(get_type_hints)


def parse(path: Path) -> Mapping[str, Any]:
    """Read a file of either kind."""
    try:
        text = read_regular_file(path, _MAX_BYTES).decode()
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the schema: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # JSON, TOML and UTF-8 raise the former
        raise ConfigError(f"{path}: the schema is not well formed: {first_line(error)}") from None


def fill(values: Any, make: type[Table], where: str) -> Table:
    """Return a table of the file as a dataclass, whose fields say what type a key has."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: expected a table of keys, found {values!r}")
    types = _field_types(make)
    names = {"from" if name == "source" else name: name for name in types}
    if "from" in names and "from" not in values:
        raise ConfigError(f"{where}: it lacks 'from'; add it")
    filled = {}
    for key, value in values.items():
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}")
        filled[names[key]] = _read(value, types[names[key]], f"{where}: {key}")
    return make(**filled)


def _read(value: Any, type_: Any, where: str) -> Any:
    """Return the value of a key whose field has this type; for `X | None`, the key holds an X."""
    if get_origin(type_) is UnionType:
        type_ = get_args(type_)[0]
    if type_ in _READERS:
        return _READERS[type_](value, where)
    if get_origin(type_) is not Mapping:
        return fill(value, type_, where)
    make = get_args(type_)[1]
    tables = _typed(value, Mapping, "a table", where)
    if get_origin(make) is Union:  # words and numbers, which the dataclass checks
        return dict(tables)
    return {name: fill(table, make, f"{where}.{name}") for name, table in tables.items()}


def _typed(value: Any, type_: type, what: str, where: str) -> Any:
    if not isinstance(value, type_):
        raise ConfigError(f"{where} is {value!r}; it must be {what}")
    return value


def _read_text(value: Any, where: str) -> str:
    return _typed(value, str, "a text", where)


def _read_count(value: Any, where: str) -> int:
    return require_int(where, value)


def _read_float(value: Any, where: str) -> float:
    if not is_number(value):
        raise ConfigError(f"{where} is {value!r}; it must be a number")
    return float(value)


def _read_bool(value: Any, where: str) -> bool:
    return _typed(value, bool, "true or false", where)


def _read_texts(value: Any, where: str) -> tuple[str, ...]:
    items = _typed(value, list, "a list of texts", where)
    return tuple(_read_text(item, where) for item in items)


_READERS: dict[Any, Callable[[Any, str], Any]] = {
    str: _read_text,
    int: _read_count,
    float: _read_float,
    bool: _read_bool,
    tuple[str, ...]: _read_texts,
}


def as_toml(values: Mapping[str, Any]) -> str:
    """Return plain values, as `Schema.to_dict` gives them, as the text of a file."""
    plain = [f"{_key(key)} = {_toml(item)}" for key, item in values.items() if _is_plain(item)]
    return "\n".join([*plain, *_tables(values, "")]) + "\n"


def _tables(values: Mapping[str, Any], path: str) -> Iterator[str]:
    for key, table in values.items():
        if not _is_plain(table):
            name = f"{path}{_key(key)}"
            inner = [f"{_key(k)} = {_toml(item)}" for k, item in table.items() if _is_plain(item)]
            if inner:
                yield "\n".join(["", f"[{name}]", *inner])
            yield from _tables(table, f"{name}.")


def _is_plain(value: Any) -> bool:
    return not isinstance(value, Mapping)


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
