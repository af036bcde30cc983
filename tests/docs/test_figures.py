# SPDX-License-Identifier: Apache-2.0
"""Figures of speed in the README: each is in the file of measured ones, with its source."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "readme.json").read_text())
SPEED = re.compile(r"\b(?:\d+ to )?\d[\d,.]* (?:µs|ms|s|rows/s|times|MB|GB|MiB|GiB)\b")


def test_each_figure_of_speed_in_the_readme_was_measured():
    said = set(SPEED.findall(README))
    assert said == {figure["text"] for figure in MEASURED}


@pytest.mark.parametrize("figure", MEASURED, ids=lambda figure: figure["text"])
def test_a_measured_figure_says_where_it_comes_from(figure):
    assert figure["command"] and figure["unit"]
    if "source" in figure:
        assert figure["stands"] in (ROOT / figure["source"]).read_text()
    else:
        assert figure["date"] and figure["commit"]
