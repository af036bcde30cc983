# SPDX-License-Identifier: Apache-2.0
"""Strict conversion of plain values to dataclasses, with pydantic; TOML and JSON files.

An unknown key is an error that suggests the nearest one. Every message names the key's path.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from sparsetrain.errors import ConfigError, first_line, nearest
from sparsetrain.system.regular_files import read_regular_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


Table = TypeVar("Table")
_MAX_BYTES = 16 << 20


def parse(path: Path) -> Mapping[str, Any]:
    """Read a TOML or JSON file."""
    try:
        text = read_regular_file(path, _MAX_BYTES).decode()
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the schema: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # ValueError from JSON, TOML or UTF-8
        raise ConfigError(f"{path}: the schema is not well formed: {first_line(error)}") from None


def fill(values: Any, kind: type[Table], where: str) -> Table:
    """Build a dataclass from plain values; its fields define the keys and their types.

    Raises
    ------
    ConfigError
        If a key is unknown, missing or of the wrong type; the message names its path.
    """
    from pydantic import ValidationError

    # Via JSON, where even strict pydantic accepts a list as a tuple and a table as a dataclass.
    text = json.dumps([values], default=lambda value: {type(value).__name__: str(value)})
    try:
        table: Table = _reader(kind).validate_json(text)[0]  # type: ignore[arg-type]
        return table
    except ValidationError as error:
        raise ConfigError(f"{where}: {_describe(error.errors()[0], kind)}") from None


@cache
def _reader(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter  # takes 0.1 s

    # pydantic does not pass these settings to a dataclass, but passes them through a tuple.
    return TypeAdapter(tuple[kind], config=ConfigDict(strict=True, extra="forbid"))


def _describe(problem: Any, kind: Any) -> str:
    """Describe one of pydantic's errors by the path of its key."""
    path = [str(part) for part in problem["loc"][1:]]
    name, reason = ".".join(path) or "all of it", problem["msg"].replace("Input should", "it must")
    if problem["type"] == "value_error":  # raised by the dataclass itself
        return str(problem["ctx"]["error"])
    if problem["type"] == "missing":
        return f"{name} is missing"
    if problem["type"] == "unexpected_keyword_argument":
        return f"unknown key {name!r}; {_hint(path, kind)}"
    reason = reason.replace("valid array", "list").replace("an object", "a table")
    return f"{name} is {problem['input']!r:.60}; {reason}"


def _hint(path: Sequence[str], kind: Any) -> str:
    for table in path[:-1]:
        inner = [each for each in get_args(kind) if each is not ...]
        kind = get_type_hints(kind)[table] if is_dataclass(kind) else inner[-1]
    names = [field.metadata.get("alias", field.name) for field in fields(kind)]
    return nearest(path[-1], names)


def as_toml(values: Mapping[str, Any]) -> str:
    """Return plain values, such as `Schema.to_dict` returns, as the text of a TOML file."""
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
