# SPDX-License-Identifier: Apache-2.0
"""Records what the tests here compare with: ``python -m tests.golden [NAME ...]``.

A name is that of a file beside this one, and by default all are recorded. Whoever records says in
CHANGELOG why a result may differ.
"""

import json
import sys
import tempfile
from pathlib import Path

from tests.cuda import machine_code
from tests.golden import answers, layouts, programs, runs

FOLDER = Path(__file__).parent


def _answers() -> object:
    with tempfile.TemporaryDirectory() as folder:
        return answers.found(Path(folder))


RECORD = {
    "runs": lambda: {name: runs.record(name) for name in runs.NAMES},
    "layouts": layouts.found,
    "programs": programs.found,
    "answers": _answers,
    "kernels": machine_code.found,  # of the nvcc that the extra `cuda` brings
}

for name in sys.argv[1:] or RECORD:
    text = json.dumps(RECORD[name](), indent=1, ensure_ascii=False)
    (FOLDER / f"{name}.json").write_text(text + "\n")
