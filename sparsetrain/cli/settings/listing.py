# SPDX-License-Identifier: Apache-2.0
"""Every setting with its value and what it means, as a TOML file that can be edited and given back.

What a setting means stands in the docstring of its section and nowhere else. A value that is not
set has no form in TOML: its line is a comment.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from sparsetrain.cli.settings.schema import Settings

_WIDTH = 100
_ENTRY = re.compile(r"^(\w+(?:, \w+)*)(?: : (.*))?$")  # "factor, power : float or None"


def as_toml(settings: Settings) -> str:
    r"""Return settings as the text of a TOML file.

    Examples
    --------
    >>> print("\n".join(as_toml(Settings()).splitlines()[5:8]))
    [data]
    # Occurrences in the training data below which a category counts as rare. (int)
    min_count = 5
    """
    lines = ["# Settings of `sparsetrain train`: keep the lines that you change, give the file by"]
    lines += ["# --config FILE. One alone: --set section.key=value, or the environment variable"]
    lines += ["# SPARSETRAIN_<SECTION>__<KEY>. What begins with `#` and has no value is not set."]
    lines += ["# --set section.key= takes back what a file, the environment or a run says."]
    for name in Settings.model_fields:
        lines += ["", f"[{name}]", *_section(getattr(settings, name))]
    return "\n".join(lines) + "\n"


def meanings(section: type) -> dict[str, tuple[str, str]]:
    """Return for each setting of a section its type and what it means, from the docstring."""
    text = inspect.cleandoc(section.__doc__ or "")
    block = text.partition("Attributes\n----------\n")[2].partition("\n\n")[0]
    found: dict[str, tuple[str, str]] = {}
    names: list[str] = []
    for line in block.splitlines():
        entry = _ENTRY.match(line)
        if entry:
            names = entry[1].split(", ")
            found |= {name: (entry[2] or "", "") for name in names}
        for name in () if entry else names:
            type_, meaning = found[name]
            found[name] = type_, f"{meaning} {line.strip()}".strip()
    return found


def _section(section: Any) -> Iterator[str]:
    said = ""
    known = meanings(type(section))
    for key in type(section).model_fields:
        type_, meaning = known.get(key, ("", ""))  # python -OO leaves no docstrings
        text = f"{meaning} ({type_})" if type_ else meaning
        if text != said:
            yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        said = text
        value = getattr(section, key)
        yield f"# {key} =" if value is None else f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item) for item in value)}]"
    if hasattr(value, "model_dump"):
        pairs = value.model_dump(exclude_none=True).items()
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in pairs) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
