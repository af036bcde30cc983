# SPDX-License-Identifier: Apache-2.0
"""Records what the tests here compare with: ``python -m tests.golden [NAME ...]``.

A name is that of a file beside this one, and by default all are recorded. Whoever records says in
CHANGELOG why a result may differ.
"""

import json
import re
import sys
import tempfile
import textwrap
from pathlib import Path

from tests.cuda import machine_code
from tests.golden import answers, layouts, programs, runs

FOLDER = Path(__file__).parent


def _answers() -> object:
    with tempfile.TemporaryDirectory() as folder:
        return answers.found(Path(folder))


def _on_few_lines(found: object) -> str:
    """Return JSON that has a list of plain values on one line, or on as many as it fills."""

    def filled(values: re.Match[str]) -> str:
        text = json.dumps(json.loads(values[0]), ensure_ascii=False)
        return textwrap.fill(text, 98, subsequent_indent="   ")

    return re.sub(r"\[[^][{}]+\]", filled, json.dumps(found, indent=1, ensure_ascii=False))


RECORD = {
    "runs": lambda: {name: runs.record(name) for name in runs.NAMES},
    "layouts": layouts.found,
    "programs": programs.found,
    "answers": _answers,
    "kernels": machine_code.found,  # of the nvcc that the extra `cuda` brings
}

for name in sys.argv[1:] or RECORD:
    (FOLDER / f"{name}.json").write_text(_on_few_lines(RECORD[name]()) + "\n")
