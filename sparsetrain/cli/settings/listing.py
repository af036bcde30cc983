# SPDX-License-Identifier: Apache-2.0
"""All settings with values and help, as a TOML file to edit and pass to `--config`.

TOML cannot express a value that is not set: its line is a comment.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from sparsetrain.cli.settings.fields import describe_type
from sparsetrain.cli.settings.schema import Settings

_WIDTH = 100
_HEAD = """\
# Settings of `sparsetrain train`. Keep the lines that you change and pass the file with
# --config FILE. To change one setting: --set section.key=value, or the environment variable
# SPARSETRAIN_<SECTION>__<KEY>. A line that begins with `#` and has no value is not set.
# --set section.key= restores the default.
"""


def as_toml(settings: Settings) -> str:
    r"""Return settings as the text of a TOML file.

    Examples
    --------
    >>> print("\n".join(as_toml(Settings()).splitlines()[5:8]))
    [data]
    # Categories rarer than this in the training data share one row. (int)
    min_count = 5
    """
    lines = _HEAD.splitlines()
    for name in Settings.model_fields:
        lines += ["", f"[{name}]", *_section(getattr(settings, name))]
    return "\n".join(lines) + "\n"


def _section(section: Any) -> Iterator[str]:
    for key, field in type(section).model_fields.items():
        help_ = f"{field.description} ({describe_type(field)})"
        yield from textwrap.wrap(help_, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        value = getattr(section, key)
        yield f"# {key} =" if value is None else f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item) for item in value)}]"
    if hasattr(value, "model_dump"):
        pairs = value.model_dump(exclude_none=True).items()
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in pairs) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
