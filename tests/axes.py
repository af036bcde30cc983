# SPDX-License-Identifier: Apache-2.0
"""Axes of the package, and the number of files that each is known to.

An axis is a choice that could be combined with any other: the device, the kind of a label, the
precision of a program. A file knows an axis when its code, beside comments, docstrings and imports,
names it. The home of an axis is where it is meant to be named. Outside of it the number of files
may only fall: an axis that wants a branch in its fourth file becomes a value first, as `RowSparse`
is one.

``python -m tests.axes`` prints the files; `tests.test_axes` holds their number.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import sparsetrain

PACKAGE = Path(sparsetrain.__file__).parent


class Axis(NamedTuple):
    """What names an axis in code, the paths of its home, and the files outside that know it."""

    names: str
    home: str
    files: int


AXES = {
    "a row-sparse gradient": Axis(
        r"isinstance\([^)]*RowSparse|is_row_sparse", r"^(sparse_tensor|ad)/", 6
    ),
    "CUDA": Axis(
        r'\bon_gpu\b|is_cuda\(|"cuda"|\bgpu\.\w|\bon_host\b|\bcuda\.',
        r"^backends/",
        6,
    ),
    "tables in half precision and int8": Axis(
        r"\bstored\.(rounded|trainable|beside)\b|\bU?INT8\b|table_dtype|table_format_of\(.*\.dtype",
        r"table_formats|quantized|^tables/",
        5,
    ),
    "precision of programs": Axis(
        r"\bpolicy\b|policy_(for|of)|to_half|precision\.lacks|loss_scale|LOSS_SCALE|\bscaling\b"
        r'|may_overflow|"rounds"|"(bf16|fp16)"',
        r"/precision/|/bf16|/amx|half_|/half",
        10,
    ),
    "a factor of gradients": Axis(r"\bscaled(=|: bool)|\.scaled\b", r"^(optim|tables)/formula", 9),
    "exact mode": Axis(
        r'\bhistories\b|catch_up|\.caught\b|"exact"|flush_\(|_flush\(|catches_up|is_tracked'
        r"|\.lags\b|\blagging\b|\bstamp(ed|s)?\b|\bLAST\b|max_replayed"
        r"|(table|params)\.(flush|current)\(",
        r"^tables/",
        12,
    ),
    "bags": Axis(
        r"\bhas_bags\b|\bpooling\b|(?<!rows are )\bweighted\b|\bbags\b",
        r"/bags\.py|ragged|data/batch|/by_feature",
        10,
    ),
    "kinds of labels": Axis(
        r'label_kinds|LabelKind|is_clicks|(?<!": )"(binary|real)"|\b(Binary|Real|Classes)\(',
        r"^labels/",
        5,
    ),
    "shared tables": Axis(r"share_embedding|\bowners\b|owners_of", r"shared_tables|/sharing", 9),
    "weights of rows": Axis(r"row_weights|with_weights", r"^$", 8),
    "text that is a number": Axis(
        r"hexadecimal|\bHEXADECIMAL\b|\bDigits\b|\bhexes\b", r"parsing/", 7
    ),
    "encoded data": Axis(
        r"\.encoded\b|is_converted|treat_as|read_converted",
        r"conversion/|columns/plain",
        10,
    ),
    "several processes": Axis(
        r"\b(self|asked|trainer|predictor)\.parallel\b|\bparallel: Any|\bparallel=[_a-z]"
        r"|\btrain\.parts|\bparts: (int|Count)|processes_started|\bShards?\b",
        r"^parallel/|/launcher|/processes",
        9,
    ),
    "ranking": Axis(
        r'"ranking"|\bretrieval\.|\brecommend\(|\bnegatives\b|item_vectors',
        r"retrieval|ranking|ranker|interactions|metrics/|models/losses|data/synthetic",
        5,
    ),
}


def code(path: Path) -> str:
    """Return a file without docstrings, imports and comments."""
    source = path.read_text()
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)) or _is_text(node):
            span = slice(node.lineno - 1, node.end_lineno)
            lines[span] = [""] * len(lines[span])
    return "\n".join(line.partition("#")[0] for line in lines)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def files_that_know(codes: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each axis with the files outside its home that name it; `codes` is path -> code."""
    for name, axis in AXES.items():
        outside = {path: text for path, text in codes.items() if not re.search(axis.home, path)}
        yield name, sorted(p for p, text in outside.items() if re.search(axis.names, text))


@cache
def codes() -> dict[str, str]:
    """Return the code of each file of the package."""
    return {str(p.relative_to(PACKAGE)): code(p) for p in sorted(PACKAGE.rglob("*.py"))}


if __name__ == "__main__":
    for name, files in files_that_know(codes()):
        sys.stdout.write(f"{name}: {len(files)} files, at most {AXES[name].files}\n")
        sys.stdout.writelines(f"    {file}\n" for file in files)
