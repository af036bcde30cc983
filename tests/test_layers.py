# SPDX-License-Identifier: Apache-2.0
"""Who imports whom, read from the source: the directions that keep the parts apart.

A part is a package or a module directly in `sparsetrain`. Imports inside functions and for type
checkers count too: they say what a part knows about.
"""

import ast
import re
from pathlib import Path

import pytest

import sparsetrain

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sparsetrain"

# Part -> the parts it may import besides itself. `errors`, `exports` and `given` are for all.
FOR_ALL = {"errors", "exports", "given"}
MAY_IMPORT = {
    "errors": set(),
    "exports": set(),
    "given": set(),
    "relax_op": set(),
    "transpose": set(),
    "turns": set(),
    "past_caches": set(),
    "one_of": {"transpose"},
    "formats": set(),
    "kernel_builder": set(),
    "progress": set(),
    "libraries": {"quiet"},
    "runtime": {"libraries", "memory", "turns"},
    "metrics": set(),
    "memory": set(),
    "checkpoint": {"memory", "writing"},
    "settings": set(),
    "sharing": set(),
    "writing": set(),
    "data": {"sharing", "writing"},
    "naming": {"runtime"},
    "operands": set(),
    "attention": {"operands"},
    "uncompiled": {"operands", "turns"},
    "demands": {"operands"},
    "indexing": {"kernel_builder", "operands", "relax_op", "sparse_tensor"},
    "windows": {"relax_op"},
    "legalize": {"indexing"},
    "arguments": {"demands", "indexing", "operands", "runtime"},
    "numerics": {"runtime"},
    "quiet": set(),
    "cache": {"legalize", "libraries", "runtime", "turns"},
    "pools": set(),
    "profile": {"runtime"},
    "run": {"checkpoint", "writing"},
    "fit": {"checkpoint", "data", "progress", "run"},
    "precision": {"operands", "runtime"},
    "schedule": {"attention", "kernel_builder", "legalize", "operands", "relax_op", "runtime"}
    | {"transpose", "windows"},
    "sparse_tensor": {"kernel_builder", "runtime", "relax_op", "turns"},
    "ad": {"attention", "indexing", "operands", "sparse_tensor", "relax_op", "turns", "windows"},
    "optim": {"kernel_builder", "libraries", "one_of", "sparse_tensor", "runtime"}
    | {"checkpoint", "formats", "naming"},
    "embedding": {"ad", "kernel_builder", "sparse_tensor", "relax_op", "formats", "runtime"}
    | {"past_caches", "transpose", "turns"},
    "models": {"ad", "embedding", "kernel_builder", "sparse_tensor", "runtime", "relax_op"}
    | {"transpose", "turns", "past_caches", "formats", "schedule", "sharing"},
    "build": {"ad", "arguments", "cache", "embedding", "precision", "relax_op", "runtime"}
    | {"schedule", "turns", "uncompiled"},
    "fused": {"ad", "build", "optim", "precision", "runtime", "sparse_tensor"},
    "ahead": {"data", "runtime", "sparse_tensor", "step"},
    "step": {"ad", "data", "fused", "optim", "precision", "runtime"},
    "predictor": {"build", "data", "formats", "metrics", "precision", "runtime", "naming"}
    | {"models", "turns"},
    "quantized": {"checkpoint", "formats", "predictor", "runtime", "saved", "naming"} | {"turns"},
    "trained_model": {"checkpoint", "data", "formats", "models", "optim", "precision", "predictor"}
    | {"quantized", "runtime", "naming", "saved", "turns"},
    "growing": {"data", "models", "optim"},
    "trainer": {
        "ad",
        "ahead",
        "build",
        "data",
        "formats",
        "predictor",
        "fit",
        "models",
        "numerics",
        "optim",
        "pools",
        "precision",
        "profile",
    }
    | {"growing", "run", "runtime", "saved", "step", "trained_model", "turns"},
    "saved": {"checkpoint", "data", "naming", "optim"},
    "loading": {"checkpoint", "data", "fit", "models", "naming", "optim", "precision"}
    | {"formats", "predictor", "quantized", "run", "runtime", "saved", "trainer"},
    "compare": {"data", "embedding", "kernel_builder", "loading", "optim", "quiet", "run"}
    | {"runtime", "sparse_tensor"},
    "cli": {"__init__", "libraries", "progress", "settings", "writing"},
}
# Outside the kernels and the graph, nothing depends on TVM.
WITHOUT_TVM = {
    "errors",
    "progress",
    "memory",
    "pools",
    "quiet",
    "metrics",
    "writing",
    "checkpoint",
    "settings",
    "data",
    "sharing",
    "run",
    "fit",
} | {
    "naming",
    "saved",
    "loading",
    "step",
    "trained_model",
    "growing",
    "trainer",
    "ahead",
}
ONLY_FROM_AD = {
    "embedding": {"defvjp", "row_sparse_cotangent"},
    "models": {"defvjp", "bce_with_logits"},
}


def imports(path: Path) -> set[str]:
    """Return full names of all that a file imports: modules, or names in modules."""
    package = ["sparsetrain", *path.relative_to(PACKAGE).parts[:-1]] if _ours(path) else []
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def _ours(path: Path) -> bool:
    return PACKAGE in path.parents


def files(part: str) -> list[Path]:
    module = PACKAGE / f"{part}.py"
    return [module] if module.exists() else sorted((PACKAGE / part).rglob("*.py"))


def parts_imported(part: str) -> set[str]:
    names = [n.split(".") for path in files(part) for n in imports(path)]
    ours = {n[1] if len(n) > 1 else "__init__" for n in names if n[0] == "sparsetrain"}
    return {name if files(name) else "__init__" for name in ours}


def test_every_part_has_its_place():
    found = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert found - {"__init__", "__main__"} <= set(MAY_IMPORT)


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_lies_below_it(part):
    assert parts_imported(part) - {part, *FOR_ALL} <= MAY_IMPORT[part]


def test_the_directions_have_no_circle_but_loading():
    rest = {part: set(below) for part, below in MAY_IMPORT.items()}
    rest["cli"].discard("__init__")
    while rest:
        lowest = {part for part, below in rest.items() if not below & rest.keys()}
        assert lowest, f"a circle among {sorted(rest)}"
        rest = {part: below for part, below in rest.items() if part not in lowest}


# Folders and files of `data` in the order in which rows pass them: each uses those before it.
WAY_OF_DATA = [
    *("position", "whole_file", "values", "ragged", "batch", "micro_batches", "schema", "read"),
    *("encode", "stream", "synthetic", "conversion", "inspect"),
]


@pytest.mark.parametrize("place", range(len(WAY_OF_DATA)), ids=WAY_OF_DATA)
def test_data_uses_only_what_lies_before_it_on_the_way(place):
    name = WAY_OF_DATA[place]
    used = {n.split(".")[2] for path in files(f"data/{name}") for n in imports(path) if _data(n)}
    assert used <= set(WAY_OF_DATA[: place + 1])


def test_every_part_of_data_is_on_the_way():
    parts = (PACKAGE / "data").iterdir()
    found = {p.stem for p in parts if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert found == {"__init__", *WAY_OF_DATA}


def _data(name: str) -> bool:
    return name.startswith("sparsetrain.data.")


@pytest.mark.parametrize("part", sorted(WITHOUT_TVM))
def test_a_part_that_needs_no_tvm_imports_none(part):
    names = {name.split(".")[0] for path in files(part) for name in imports(path)}
    assert not names & {"tvm", "tvm_ffi"}


@pytest.mark.parametrize("part", ONLY_FROM_AD)
def test_operators_meet_the_ad_through_its_rule_table_only(part):
    names = {name for path in files(part) for name in imports(path)}
    assert {n for n in names if n.startswith("sparsetrain.ad")} <= {
        f"sparsetrain.ad.{name}" for name in ONLY_FROM_AD[part]
    }


# --- Commands and examples use public names -----------------------------------------------------


USERS = [
    path for folder in (PACKAGE / "cli", ROOT / "examples") for path in sorted(folder.rglob("*.py"))
]


@pytest.mark.parametrize("path", USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_examples_use_public_names(path):
    for first, *rest in _uses(ast.parse(path.read_text())):
        assert first in sparsetrain.__all__, first
        for name in rest:
            assert not name.startswith("_") and hasattr(getattr(sparsetrain, first), name), name


def _uses(tree: ast.AST) -> set[tuple[str, ...]]:
    """Return `("data", "Batch")` for `st.data.Batch`, where `st` is the package."""
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "sparsetrain"
    }
    chains = (_chain(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {chain[1:3] for chain in chains if chain and chain[0] in names}


def _chain(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Attribute):
        return (*before, node.attr) if (before := _chain(node.value)) else ()
    return (node.id,) if isinstance(node, ast.Name) else ()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.py")), ids=lambda p: p.stem)
def test_examples_import_the_package_only(path):
    assert {n for n in imports(path) if n.startswith("sparsetrain")} == {"sparsetrain"}


def test_the_design_page_names_every_part():
    page = (ROOT / "docs" / "design.md").read_text()
    assert [part for part in MAY_IMPORT if not re.search(rf"\b{part}\b", page)] == []
