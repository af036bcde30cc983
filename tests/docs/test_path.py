# SPDX-License-Identifier: Apache-2.0
"""The path through the code in docs/design.md: its files are those that a step runs."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sparsetrain as st
from tests import small_dlrm

ROOT = Path(st.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
PATH = re.findall(r"^\| `([a-z_/]+\.py)` \|", PAGE, re.MULTILINE)
EVERY_STEP = PATH[-2:]  # the others run when a program is made


def files_run(function: Callable[[], object]) -> set[str]:
    """Files of the package in which a function is called meanwhile."""
    found = set()

    def note(frame, event, argument):
        if event == "call":
            found.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return {str(Path(f).relative_to(ROOT)) for f in found if f.startswith(str(ROOT))}


@pytest.mark.cpu("a step is one program on a CPU")
def test_the_path_leads_along_the_step_that_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSETRAIN_CACHE", "")
    model = st.models.DLRM(rows=[11, 12], dim=4, bottom=(3,), top=(3,), num_dense=2)
    batch = small_dlrm.batch(8, rows=[11, 12])
    batch = st.Batch(batch.dense[:, :2], batch.ids, batch.labels)
    trainers = []

    def first_step():
        trainers.append(st.Trainer(model, st.optim.adagrad(0.1), target="cpu"))
        trainers[0].step(batch)

    assert set(PATH) <= files_run(first_step)
    assert set(EVERY_STEP) <= files_run(lambda: trainers[0].step(batch))


def test_the_path_takes_fifteen_minutes():
    lines = [len((ROOT / file).read_text().splitlines()) for file in PATH]
    assert len(PATH) <= 8 and sum(lines) < 1_600  # with docstrings
