# SPDX-License-Identifier: Apache-2.0
"""Pages render as they were written: headings, lists, tables and links are what they look like."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")])
PAGES = [page for page in PAGES if not any(p.startswith(".") for p in page.relative_to(ROOT).parts)]

LONGEST_HEADING = 60
LONGEST_CODE = 76  # columns that fit on a page of the site
RUN_TOGETHER = re.compile(
    r"\S.*? - \*\*"  # an item that begins with its name, behind other text
    r"|[.:;] [-*+] \S"  # an item behind a sentence
    r"|\S \d\. \*\*"  # a numbered item
)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside of code, with their numbers."""
    code = False
    for number, line in enumerate(text.split("\n"), 1):
        code ^= line.lstrip().startswith("```")
        if not code:
            yield number, line


def joined(text: str) -> list[str]:
    """Lines that swallowed the next: a heading a paragraph, an item or a paragraph an item."""
    found = []
    for number, line in prose(text):
        if line.startswith("#") and len(line) > LONGEST_HEADING:
            found.append(f"line {number}: a heading with a paragraph: {line}")
        elif RUN_TOGETHER.search(line):
            found.append(f"line {number}: a list item within a line: {line}")
    return found


def cells(row: str) -> int:
    return len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row)))


def anchors(page: Path) -> set[str]:
    """What links may name in a page: its headings, lower case, words joined by hyphens."""
    headings = [line.lstrip("# ") for _, line in prose(page.read_text()) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_no_line_swallowed_the_next():
    found = {page: joined(page.read_text()) for page in PAGES}
    assert not any(found.values()), found


@pytest.mark.parametrize(
    "line",
    [
        "## Kernels Every result has one writer and every sum a fixed order; there are none.",
        "## How it is verified - **On an H200**, first version: 130 passed",
        "Without a device: - **Emulated** (`tests`): TVM's CUDA source is compiled by g++",
        "in every order. - **The same bodies** run on both",
        "- **One** is here. - two is in the same line",
        "1. **First**: a sort. 2. **Second**: nine bits",
    ],
)
def test_a_line_that_swallowed_another_is_found(line):
    assert len(joined(f"# Title\n\n{line}\n")) == 1
    assert joined(f"```\n{line}\n```\n") == []


def test_rows_of_a_table_have_the_cells_of_its_head():
    other = []
    for page in PAGES:
        head = None
        for number, line in prose(page.read_text()):
            if not line.startswith("|"):
                head = None
                continue
            head = head or cells(line)
            other += [f"{page}: line {number}: {line}"] * (cells(line) != head)
    assert other == []


def test_a_table_begins_a_paragraph():
    raw = []  # shown as it was typed: the strict build of the site does not see it
    for page in PAGES:
        before = ""
        for number, line in prose(page.read_text()):
            begins = line.startswith("|") and not before.startswith(("|", "#"))
            raw += [f"{page}: line {number}: {line}"] * (begins and before.strip() != "")
            before = line
    assert raw == []


def test_code_fits_on_a_page():
    cut = []
    for page in PAGES:
        lines = page.read_text().split("\n")
        outside = {number for number, _ in prose(page.read_text())}
        cut += [
            f"{page}: line {number}: {line}"
            for number, line in enumerate(lines, 1)
            if number not in outside and len(line) > LONGEST_CODE
        ]
    assert cut == []


def test_examples_of_docstrings_fit_on_a_page():
    example = re.compile(r"^ +((?:>>>|\.\.\.) .*?)(?: *# doctest.*)?$", re.MULTILINE)
    files = (ROOT / "sparsetrain").rglob("*.py")
    lines = {line: file for file in files for line in example.findall(file.read_text())}
    assert {line: file for line, file in lines.items() if len(line) > LONGEST_CODE} == {}


def test_links_lead_to_files_and_headings():
    lost = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            name, _, heading = link.partition("#")
            if name.startswith("http"):
                continue
            target = (page.parent / name).resolve() if name else page
            there = target.exists() and (not heading or heading in anchors(target))
            lost += [f"{page}: {link}"] * (not there)
    assert lost == []


def test_files_of_python_that_a_page_names_exist():
    folders = (ROOT, ROOT / "sparsetrain")
    lost = []
    for page in PAGES:
        if page.parent.name != "results":
            named = re.findall(r"`([\w]+/[\w/]+\.py)`", page.read_text())
            lost += [(page, n) for n in named if not any((f / n).exists() for f in folders)]
    assert lost == []
