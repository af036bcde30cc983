# SPDX-License-Identifier: Apache-2.0
"""Pages of the site: the repository's own, an API reference from docstrings, a gallery of examples.

    python docs/build_site.py && mkdocs build --strict      (`make site`)

Pages keep their places relative to one another, so that links between them hold here and there.
"""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build/pages"
COPIED = ("*.md", "docs/*.md", "docs/*.css", "examples/**/*.*", "LICENSE")
COPIED += ("benchmarks/*.py", "benchmarks/**/*.md", "benchmarks/**/*.svg")
# Later packages export some names of earlier ones, which keep them.
PACKAGES = ("ad", "compare", "data", "embedding", "errors", "labels", "metrics", "models", "optim")
PACKAGES += ("parallel", "runtime", "sklearn", "tables", "torch", "training.loggers", "")
PUBLIC_PATHS = {"training.loggers": "loggers"}  # where users import it from
LANGUAGES = {".py": "python", ".c": "c"}


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    for pattern in COPIED:
        for file in filter(Path.is_file, ROOT.glob(pattern)):
            target = OUT / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".md":
                target.write_text(with_lists_apart(file.read_text("utf-8")), encoding="utf-8")
            else:
                shutil.copyfile(file, target)
    package = griffe.load("sparsetrain", search_paths=[ROOT])
    seen: set[str] = set()
    for name in PACKAGES:
        module = package[name] if name else package
        path = f"sparsetrain.{PUBLIC_PATHS.get(name, name)}".rstrip(".")
        write(f"api/{path}.md", reference(module, path, seen))
    write("examples/gallery.md", gallery())


def with_lists_apart(text: str) -> str:
    """Return a page with a blank line before each list, which Python-Markdown needs."""
    lines: list[str] = []
    in_code = in_list = False
    for line in text.split("\n"):
        is_item = not in_code and line.startswith(("- ", "1. "))
        if is_item and not in_list:
            lines.append("")
        in_code ^= line.lstrip().startswith("```")
        in_list = is_item or (in_list and (not line or line[0] in " 123456789"))
        lines.append(line)
    return "\n".join(lines)


def write(name: str, text: str) -> None:
    (OUT / name).parent.mkdir(parents=True, exist_ok=True)
    (OUT / name).write_text(text, encoding="utf-8")


def reference(module: griffe.Module, path: str, seen: set[str]) -> str:
    """Return a page on the classes and functions that a module exports, but for those `seen`."""
    docstring = module.docstring.value if module.docstring else ""
    parts = [f"# {path}", docstring]
    shared: dict[str, list[str]] = {}  # private base classes of several, with their names
    for name in exported(module):
        found = module[name].final_target if module[name].is_alias else module[name]
        if (found.is_class or found.is_function) and found.path not in seen:
            seen.add(found.path)
            parts.append(f"::: {found.path}\n    options: {{heading: {path}.{name}}}")
            for base in found.resolved_bases if found.is_class else ():
                if base.name.startswith("_") and base.has_docstring:
                    shared.setdefault(base.path, []).append(name)
    for base_path, names in shared.items():
        heading = f"Shared by {' and '.join(names)}"
        parts.append(f"::: {base_path}\n    options: {{heading: {heading}}}")
    return "\n\n".join(parts) + "\n"


def exported(module: griffe.Module) -> list[str]:
    """Return the names of `__all__`, else those of ``from ... import NAME as NAME``."""
    if module.exports:
        return sorted(map(str, module.exports))
    return sorted(
        name
        for name, member in module.members.items()
        if member.is_alias
        and not name.startswith("_")
        and member.target_path.startswith("sparsetrain.")
    )


def gallery() -> str:
    """Return a page with every example, introduced by its docstring."""
    parts = ["# Examples"]
    for file in sorted((ROOT / "examples").rglob("*.*")):
        if file.suffix not in LANGUAGES:
            continue
        name, code = file.relative_to(ROOT / "examples").as_posix(), file.read_text("utf-8")
        code = code.removeprefix("# SPDX-License-Identifier: Apache-2.0\n")
        is_python = file.suffix == ".py"
        about = (ast.get_docstring(ast.parse(code)) or "").partition("\n")[0] if is_python else ""
        parts += [f"## [{name}]({name})", about, f"```{LANGUAGES[file.suffix]}\n{code}```"]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
