# SPDX-License-Identifier: Apache-2.0
"""Pages of the site: the repository's own, an API reference from docstrings, a gallery of examples.

    python docs/build_site.py && mkdocs build --strict      (`make site`)

Pages keep their places relative to one another, so that links between them hold here and there.
"""

from __future__ import annotations

import ast
import inspect
import shutil
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build/pages"
COPIED = ("*.md", "docs/*.md", "examples/**/*.*", "LICENSE")
COPIED += ("benchmarks/*.py", "benchmarks/**/*.md", "benchmarks/**/*.svg")
# The first one comes last: it exports some names of the others.
PACKAGES = ("ad", "data", "embedding", "metrics", "models", "optim", "parallel", "runtime", "")
LANGUAGES = {".py": "python", ".c": "c"}


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    for pattern in COPIED:
        for file in ROOT.glob(pattern):
            target = OUT / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    seen: set[str] = set()
    for name in PACKAGES:
        page = reference(f"sparsetrain.{name}".rstrip("."), seen)
        write(f"api/{name or 'sparsetrain'}.md", page)
    write("examples/README.md", gallery())


def write(name: str, text: str) -> None:
    (OUT / name).parent.mkdir(parents=True, exist_ok=True)
    (OUT / name).write_text(text, encoding="utf-8")


def reference(package: str, seen: set[str]) -> str:
    """Return a page on the classes and functions that a package exports, and no other page has."""
    module = import_module(package)
    parts = [f"# {package}", inspect.getdoc(module) or ""]
    for name in module.__all__:
        found = getattr(module, name)
        if not (inspect.isclass(found) or inspect.isfunction(found)):
            continue
        home = f"{found.__module__}.{found.__qualname__}"
        if home not in seen:
            parts.append(f"::: {home}")
        seen.add(home)
    return "\n\n".join(parts) + "\n"


def gallery() -> str:
    """Return a page with every example, introduced by its docstring."""
    parts = ["# Examples"]
    for file in sorted((ROOT / "examples").rglob("*.*")):
        if file.suffix not in LANGUAGES:
            continue
        name, code = file.relative_to(ROOT / "examples").as_posix(), file.read_text("utf-8")
        is_python = file.suffix == ".py"
        about = (ast.get_docstring(ast.parse(code)) or "").partition("\n")[0] if is_python else ""
        parts += [f"## {name}", about, f"```{LANGUAGES[file.suffix]}\n{code}```"]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
