# SPDX-License-Identifier: Apache-2.0
"""Strict reader of TOML and JSON schema files, driven by a table of keys and their types.

An unknown key is an error that suggests the nearest one; a value of the wrong type, one that names
the type expected. Every message begins with the key's path.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparsetrain.errors import ConfigError, first_line
from sparsetrain.system.argument_checks import is_number, require_int

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse(path: Path) -> Mapping[str, Any]:
    """Read a file of either kind."""
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the schema: {error.strerror}") from None
    except ValueError as error:  # what JSON, TOML and UTF-8 raise alike
        raise ConfigError(f"{path}: the schema is not well formed: {first_line(error)}") from None


Reader = Callable[[Any, str], Any]


def fill(values: Any, readers: Mapping[str, Reader], where: str) -> dict[str, Any]:
    """Return constructor arguments from a table of the file."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: expected a table of keys, found {values!r}")
    filled = {}
    for key, value in values.items():
        if key not in readers:
            near = difflib.get_close_matches(key, readers, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(readers)}"
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}")
        filled["source" if key == "from" else key] = readers[key](value, f"{where}: {key}")
    return filled


def read_text(value: Any, where: str) -> str:
    """Return a text."""
    return _typed(value, str, "a text", where)


def read_count(value: Any, where: str) -> int:
    """Return a whole number, 1 or more."""
    return require_int(where, value)


def read_float(value: Any, where: str) -> float:
    """Return a number as a float."""
    if not is_number(value):
        raise ConfigError(f"{where} is {value!r}; it must be a number")
    return float(value)


def read_bool(value: Any, where: str) -> bool:
    """Return true or false."""
    return _typed(value, bool, "true or false", where)


def _typed(value: Any, type_: type, what: str, where: str) -> Any:
    if not isinstance(value, type_):
        raise ConfigError(f"{where} is {value!r}; it must be {what}")
    return value


def read_texts(value: Any, where: str) -> tuple[str, ...]:
    """Return a list of texts."""
    items = _typed(value, list, "a list of texts", where)
    return tuple(read_text(item, where) for item in items)


def read_tables(make: Callable[..., Any], readers: Mapping[str, Reader], needs: str = "") -> Reader:
    """Return a reader of named tables, each of which becomes what `make` makes of its keys.

    `needs` is a key that each table must have.
    """

    def read(value: Any, where: str) -> dict[str, Any]:
        items = _typed(value, Mapping, "a table", where)
        return {name: one(item, f"{where}.{name}") for name, item in items.items()}

    def one(value: Any, where: str) -> Any:
        if needs and isinstance(value, Mapping) and needs not in value:
            raise ConfigError(f"{where}: it lacks {needs!r}; add it")
        return make(**fill(value, readers, where))

    return read
