# SPDX-License-Identifier: Apache-2.0
"""Imports of the package, checked against the map in `tests.layers`.

A part is a folder or a module directly in `sparsetrain`. Imports inside functions and for type
checkers count too.
"""

import ast
import re
from functools import cache
from pathlib import Path

import sparsetrain
from tests.layers import PAGE, PARTS, page_with_map

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sparsetrain"
ONLY_FROM_AD = {
    "embedding": {"defvjp", "row_sparse_cotangent"},
    "models": {"defvjp", "batch_norm", "bce_with_logits", "densify", "dropout"}
    | {"cross_entropy_", "linear_cross_entropy", "tiled_cross_entropy"},
}


@cache
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


def test_a_part_imports_what_the_map_says():
    more = {}
    for part in PARTS:
        public = {"__init__"} if part == "cli" else set()
        used = parts_imported(part) - {part, "errors", *public}
        more[part] = used - set(PARTS[part].imports.split())
    assert not any(more.values()), more


def test_imports_point_upwards_in_the_map():
    order = [*PARTS]
    for place, (name, part) in enumerate(PARTS.items()):
        assert set(part.imports.split()) <= set(order[:place]), name


def test_files_of_a_part_import_each_other_in_no_circle():
    circles = {part: _circle(part) for part in PARTS}
    assert not any(circles.values()), circles


def _circle(part: str) -> list[str]:
    """Return the files of a part that import each other in a circle, and those above them."""
    modules = {".".join(["sparsetrain", *_dotted(path)]): path for path in files(part)}
    rest = {name: _modules_of(imports(path), modules) - {name} for name, path in modules.items()}
    while lowest := {name for name, used in rest.items() if not used & rest.keys()}:
        rest = {name: used for name, used in rest.items() if name not in lowest}
    return sorted(rest)


def _dotted(path: Path) -> list[str]:
    return [*path.relative_to(PACKAGE).with_suffix("").parts]


def _modules_of(names: set[str], modules: dict[str, Path]) -> set[str]:
    """Return the modules of a part that a file's imports name; a folder's `__init__` has none."""
    return {m for n in names for m in (n, n.rpartition(".")[0]) if m in modules}


# Folders and files of `data` in the order of the pipeline: each imports only those before it.
PIPELINE_ORDER = [
    *("shared_tables", "values", "ragged", "batch", "rows", "derived"),
    *(
        "dense",
        "schema",
        "read",
        "columns",
        "encode",
        "stream",
        "synthetic",
        "conversion",
        "profiling",
    ),
    *("column_sample", "list_columns", "infer", "interactions"),
]


def test_data_imports_only_earlier_stages_of_the_pipeline():
    later = {}
    for stage, name in enumerate(PIPELINE_ORDER):
        names = {n for path in files(f"data/{name}") for n in imports(path) if _data(n)}
        later[name] = {n.split(".")[2] for n in names} - set(PIPELINE_ORDER[: stage + 1])
    assert not any(later.values()), later


def test_every_part_of_data_is_a_stage_of_the_pipeline():
    parts = (PACKAGE / "data").iterdir()
    found = {p.stem for p in parts if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert found == {"__init__", *PIPELINE_ORDER}


def _data(name: str) -> bool:
    return name.startswith("sparsetrain.data.")


def test_a_part_that_needs_no_tvm_imports_none():
    paths = [path for part in PARTS if not PARTS[part].uses_tvm for path in files(part)]
    tvm = {"tvm", "tvm_ffi"}
    assert [path for path in paths if tvm & {n.split(".")[0] for n in imports(path)}] == []


def test_operators_meet_the_ad_through_its_rule_table_only():
    for part, known in ONLY_FROM_AD.items():
        names = {name for path in files(part) for name in imports(path)}
        used = {name for name in names if name.startswith("sparsetrain.ad")}
        assert used <= {f"sparsetrain.ad.{name}" for name in known}, part


# --- Commands and examples use public names -----------------------------------------------------


USERS = [
    path for folder in (PACKAGE / "cli", ROOT / "examples") for path in sorted(folder.rglob("*.py"))
]


def test_commands_and_examples_use_public_names():
    strange = []
    for path in USERS:
        for first, *rest in _uses(ast.parse(path.read_text())):
            owner = getattr(sparsetrain, first) if first in sparsetrain.__all__ else None
            public = all(not name.startswith("_") and hasattr(owner, name) for name in rest)
            strange += [(str(path), first, *rest)] * (owner is None or not public)
    assert strange == []


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


def test_examples_import_the_package_only():
    for path in sorted((ROOT / "examples").rglob("*.py")):
        ours = {name for name in imports(path) if name.startswith("sparsetrain.")}
        parts = {name.rpartition(".")[0] for name in ours}
        assert parts <= {"sparsetrain.sklearn", "sparsetrain.torch"}, path


def test_the_design_page_shows_the_map():
    page = PAGE.read_text()
    assert page == page_with_map(page), "run `python -m tests.layers`"


def test_no_module_changes_a_class_of_another():
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if not re.search(r"^\w.*\.\w+ *=", text, re.MULTILINE):  # as most: parsing takes long
            continue
        tree = ast.parse(text)
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
