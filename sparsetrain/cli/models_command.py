# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain models`: every model that `train --model` takes, its paper and its settings."""

import inspect
import json
import re
import textwrap
from typing import Any

from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit


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
