# SPDX-License-Identifier: Apache-2.0
"""Examples of docstrings: they run, and print what is written below them."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import sparsetrain

PACKAGE = Path(sparsetrain.__file__).parent
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    if name.startswith("sparsetrain.torch."):
        pytest.importorskip("torch")
    assert doctest.testmod(import_module(name)).failed == 0
