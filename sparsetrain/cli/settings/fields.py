# SPDX-License-Identifier: Apache-2.0
"""Declaration of settings: the strict base of all sections, range types, and `setting`.

A setting is declared once, in its section: type, default, help, and a command-line flag, if any.
`sparsetrain settings` and the options of commands (`cli.options`) are generated from this.
"""

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Scale = Annotated[float, Field(ge=1e-37, le=1e37)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Section(BaseModel):
    """Base of all sections: strict types, no unknown keys, frozen."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Flag(NamedTuple):
    """The command-line option of a setting."""

    key: str  # the setting, `section.key`
    name: str  # such as `--lr`
    metavar: str  # placeholder for its value in the help
    help: str
    default: Any  # value of the setting without the option
    type: type  # `bool`, `str` for plain text, or `object` for text to parse


def setting(default: Any, help: str, *, flag: str | None = None, metavar: str | None = None) -> Any:
    """Declare a setting, with an option if `flag` is set; by default `metavar` is its type."""
    return Field(default, description=help, json_schema_extra={"flag": flag, "metavar": metavar})


def fields_of(settings: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting as `section.key`, with its declaration."""
    for section, field in settings.model_fields.items():
        declared: Any = field.annotation
        for key, own in declared.model_fields.items():
            yield f"{section}.{key}", own


def flags_of(settings: type[BaseModel]) -> Iterator[Flag]:
    """Yield the options of all settings with a flag, section by section."""
    for key, field in fields_of(settings):
        extra: Any = field.json_schema_extra
        if extra["flag"]:
            names = _type_names(field.annotation)
            metavar = extra["metavar"] or _metavar(names)
            option_type = {"bool": bool, "str": str}.get("".join(names), object)
            help_ = field.description or ""
            yield Flag(key, extra["flag"], metavar, help_, field.default, option_type)


def describe_type(field: FieldInfo) -> str:
    """Return the type of a setting in words: ``int``, ``"dot" or "cross"``."""
    *names, last = _type_names(field.annotation)
    return f"{', '.join(names)} or {last}" if names else last


def _type_names(annotation: Any) -> list[str]:
    """Return the alternatives of a type, without None."""
    return list(dict.fromkeys(_names(annotation)))


def _names(type_: Any) -> Iterator[str]:
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Annotated:
        yield from _names(arguments[0])
    elif origin in (Union, types.UnionType):
        for part in arguments:
            yield from _names(part)
    elif origin is Literal:
        yield from (f'"{value}"' for value in arguments)
    elif origin is Mapping:
        yield "table"
    elif origin in (list, tuple):
        yield f"list of {next(_names(arguments[0]))}"
    elif type_ is not type(None):
        yield "table" if issubclass(type_, BaseModel) else type_.__name__


def _metavar(names: list[str]) -> str:
    if names[0].startswith('"'):
        return "|".join(name.strip('"') for name in names)
    return "|".join(names).upper()
