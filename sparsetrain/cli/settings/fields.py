# SPDX-License-Identifier: Apache-2.0
"""Declaration of settings: the strict base of all sections, range types, and `setting`.

A setting is declared once, in its section: type, default, help, and the command-line flag if it has
one. `sparsetrain settings` and the options of commands (`cli.options`) are generated from that.
"""

import types
from collections.abc import Iterator
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
    """The command-line option of a setting.

    Parameters
    ----------
    key : str
        The setting, ``section.key``.
    name : str
        The option, such as ``--lr``.
    metavar : str
        Placeholder of its value in the help.
    help : str
        One or two sentences.
    default : object
        Value of the setting without the option.
    type : type
        `bool`, `str` for text taken as it is, or `object` for text that is parsed.
    """

    key: str
    name: str
    metavar: str
    help: str
    default: Any
    type: type


def setting(default: Any, help: str, *, flag: str | None = None, metavar: str | None = None) -> Any:
    """Declare a setting.

    Parameters
    ----------
    default : object
        Its value if nobody sets it.
    help : str
        One or two sentences for people.
    flag : str, optional
        Command-line option, such as ``--lr``.
    metavar : str, optional
        Placeholder in the option's help; by default it follows from the type.
    """
    return Field(default, description=help, json_schema_extra={"flag": flag, "metavar": metavar})


def flags_of(settings: type[BaseModel]) -> Iterator[Flag]:
    """Yield the options of all settings that have one, section by section."""
    for section, field in settings.model_fields.items():
        for key, own in section_fields(field).items():
            extra: Any = own.json_schema_extra
            if extra["flag"]:
                yield Flag(
                    f"{section}.{key}",
                    extra["flag"],
                    extra["metavar"] or _metavar(own.annotation),
                    own.description or "",
                    own.default,
                    _option_type(own.annotation),
                )


def section_fields(field: FieldInfo) -> dict[str, FieldInfo]:
    """Return the settings of a section, by key."""
    section: Any = field.annotation
    return dict(section.model_fields)


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
    elif origin in (list, tuple):
        yield f"list of {next(_names(arguments[0]))}"
    elif type_ is not type(None):
        yield "table" if issubclass(type_, BaseModel) else type_.__name__


def _option_type(annotation: Any) -> type:
    return {"bool": bool, "str": str}.get("".join(_type_names(annotation)), object)


def _metavar(annotation: Any) -> str:
    names = _type_names(annotation)
    if names[0].startswith('"'):
        return "|".join(name.strip('"') for name in names)
    return "|".join(names).upper()
