# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain settings`: all settings, with defaults or the values of a run, as a TOML file.

TOML has no null, so a setting without a value is a comment line. `sparsetrain models`: every model
for `train --model`, with its paper and its settings.
"""

import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetrain.cli.options import AsJson, SettingOptions, with_settings
from sparsetrain.cli.output import emit
from sparsetrain.cli.resume import read_run
from sparsetrain.cli.settings import Settings
from sparsetrain.cli.settings.fields import describe_type

_WIDTH = 100
_HEAD = """\
# Settings of `sparsetrain train`. Keep the lines that you change and pass the file with
# --config FILE. To change one setting: --set section.key=value, or the environment variable
# SPARSETRAIN_<SECTION>__<KEY>. A line that begins with `#` and has no value is not set.
# --set section.key= restores the default.
"""


@with_settings(own=False)
def settings(
    settings: SettingOptions,
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Show the settings of this run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every setting, as a file for --config."""
    resolved = settings.resolve(() if run is None else read_run(run).entries)
    emit(resolved.to_dict(), as_toml(resolved).rstrip(), as_json)


def as_toml(settings: Settings) -> str:
    """Return settings as the text of a TOML file."""
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


def models(as_json: AsJson = False) -> None:
    """List the models of `train --model`, with their papers and settings."""
    import sparsetrain as st

    found = {kind: _described(st, model) for kind, model in st.models.MODELS.items()}
    lines = [
        f"{kind}: {each['summary']}\n  {each['paper']}\n"
        + textwrap.fill(
            ", ".join(f"{name}={json.dumps(value)}" for name, value in each["settings"].items()),
            width=100,
            initial_indent="  ",
            subsequent_indent="  ",
        )
        for kind, each in found.items()
    ]
    emit(found, "\n".join([*lines, "", _USE]), as_json)


_USE = "sparsetrain train ROWS --model deepfm --set model.hidden=[400,400,400]"


def _described(st: Any, model: Any) -> dict[str, Any]:
    text = inspect.cleandoc(model.__doc__)
    return {
        "summary": text.splitlines()[0].replace("`", ""),
        "paper": next(iter(re.findall(r"https://[^\s>]+[^\s>).;,]", text)), ""),
        "settings": {name: o.default for name, o in st.models.options_of(model).items()},
    }
