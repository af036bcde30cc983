# SPDX-License-Identifier: Apache-2.0
"""Short examples run, and learn what their data hold."""

import ast
import re
import runpy
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
NEEDS = {"distributed": "mpi4py", "torch_loop": "torch", "torch_gru4rec": "torch"}
NEEDS |= dict.fromkeys(("sklearn_pipeline", "sklearn_ranking"), "sklearn")
NEEDS |= {"serve": "uvicorn"}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("sequences", *NEEDS)]
LEAST = {"ranking": ("hr@10", 0.4), "sequences": ("hr@1", 0.8)}
LEAST |= {"clicks": ("auc", 0.7), "two_labels": ("click.auc", 0.9)}


PAGES = FOLDER.parent / "docs"


@pytest.mark.parametrize("path", [*FOLDER.glob("*.py"), *PAGES.glob("*.md")], ids=lambda p: p.name)
def test_no_name_is_looked_up_by_the_id_that_stands_for_no_item(path):
    text = path.read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL) if path.suffix == ".md" else [text]
    for tree in map(ast.parse, code):
        for each in ast.walk(tree):
            if isinstance(each, ast.comprehension) and ast.unparse(each.iter) == "ids[0]":
                assert each.ifs, ast.unparse(each)


@pytest.mark.parametrize("name", ["ranking", "clicks", "new_users", "two_labels", *SLOW])
def test_an_example_runs(name, capsys):
    needed = NEEDS.get(name)
    if needed and find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    if name == "serve" and which("curl") is None:
        pytest.skip("needs curl")
    ran = runpy.run_path(str(FOLDER / f"{name}.py"))
    assert capsys.readouterr().out
    if name in LEAST:
        score, least = LEAST[name]
        assert ran["found"][score] > least
    if name == "serve":
        morning, evening = ran["found"]["predictions"]
        assert morning < 0.3 < evening
