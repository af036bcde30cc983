# SPDX-License-Identifier: Apache-2.0
"""Imports of the package, checked against the map in `tests.layers`.

A part is a folder or a module directly in `sparsetrain`. Imports inside functions and for type
checkers count too.
"""

import ast
from pathlib import Path

import pytest

import sparsetrain
from tests.layers import PAGE, PARTS, page_with_map

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sparsetrain"
ONLY_FROM_AD = {
    "embedding": {"defvjp", "row_sparse_cotangent"},
    "models": {"defvjp", "batch_norm", "bce_with_logits", "densify", "dropout"}
    | {"linear_cross_entropy"},
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


def test_every_part_is_on_the_map():
    found = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert found - {"__init__", "__main__"} == set(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_imports_what_the_map_says(part):
    public = {"__init__"} if part == "cli" else set()
    used = parts_imported(part) - {part, "errors", *public}
    assert used <= set(PARTS[part].imports.split())


def test_imports_point_upwards_in_the_map():
    order = [*PARTS]
    for place, (name, part) in enumerate(PARTS.items()):
        assert set(part.imports.split()) <= set(order[:place]), name


@pytest.mark.parametrize("part", PARTS)
def test_files_of_a_part_import_each_other_in_no_circle(part):
    modules = {".".join(["sparsetrain", *_dotted(path)]): path for path in files(part)}
    rest = {name: _modules_of(imports(path), modules) - {name} for name, path in modules.items()}
    while rest:
        lowest = {name for name, used in rest.items() if not used & rest.keys()}
        assert lowest, f"a circle among {sorted(rest)}"
        rest = {name: used for name, used in rest.items() if name not in lowest}


def _dotted(path: Path) -> list[str]:
    return [*path.relative_to(PACKAGE).with_suffix("").parts]


def _modules_of(names: set[str], modules: dict[str, Path]) -> set[str]:
    """Return the modules of a part that a file's imports name; a folder's `__init__` has none."""
    return {m for n in names for m in (n, n.rpartition(".")[0]) if m in modules}


# Folders and files of `data` in the order of the pipeline: each imports only those before it.
PIPELINE_ORDER = [
    *("shared_tables", "atomic_write", "values", "ragged", "batch", "schema"),
    *("read", "encode", "stream", "synthetic", "conversion", "profiling", "infer"),
    "interactions",
]


@pytest.mark.parametrize("stage", range(len(PIPELINE_ORDER)), ids=PIPELINE_ORDER)
def test_data_imports_only_earlier_stages_of_the_pipeline(stage):
    name = PIPELINE_ORDER[stage]
    used = {n.split(".")[2] for path in files(f"data/{name}") for n in imports(path) if _data(n)}
    assert used <= set(PIPELINE_ORDER[: stage + 1])


def test_every_part_of_data_is_a_stage_of_the_pipeline():
    parts = (PACKAGE / "data").iterdir()
    found = {p.stem for p in parts if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert found == {"__init__", *PIPELINE_ORDER}


def _data(name: str) -> bool:
    return name.startswith("sparsetrain.data.")


@pytest.mark.parametrize("part", [name for name, part in PARTS.items() if not part.uses_tvm])
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
    ours = {name for name in imports(path) if name.startswith("sparsetrain.")}
    assert {name.rpartition(".")[0] for name in ours} <= {
        "sparsetrain.sklearn",
        "sparsetrain.torch",
    }


def test_the_design_page_shows_the_map():
    page = PAGE.read_text()
    assert page == page_with_map(page), "run `python -m tests.layers`"


def test_no_module_changes_a_class_of_another():
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        imported = {
            each.asname or each.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for each in node.names
        }
        for node in tree.body:
            for target in node.targets if isinstance(node, ast.Assign) else ():
                changed = isinstance(target, ast.Attribute) and ast.unparse(target.value)
                assert changed not in imported, f"{path}: {ast.unparse(node)}"
