# SPDX-License-Identifier: Apache-2.0
"""Map of the package: each part, what it is, and the parts it may import.

``python -m tests.layers`` writes the map into docs/map.md; `tests.test_layers` checks both the
page and the imports against it.
"""

from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "map.md"
BEGIN, END = "<!-- map: python -m tests.layers -->\n\n", "\n<!-- end of the map -->\n"


class Part(NamedTuple):
    """One folder or module of `sparsetrain`."""

    summary: str
    imports: str = ""  # parts directly below, beside `errors`, which all may import
    uses_tvm: bool = False


# From the lowest part to the highest: a part imports only parts above it in this table.
PARTS = {
    "errors": Part("every error, with its exit code"),
    "system": Part("files, locks, memory, threads; argument checks; tables of HTML"),
    "backend": Part("the interface to the hardware: `Backend`, and the registry", "", True),
    "kernels": Part("how a kernel is put together; LLVM IR; int8 and half tables", "backend", True),
    "checkpoint": Part("a folder of arrays and a manifest, written atomically", "system"),
    "runtime": Part(
        "tensors, devices, threads and compiled libraries of TVM", "backend system", True
    ),
    "parsing": Part(
        "kernels that read fields of text, and from values to ids", "kernels runtime system", True
    ),
    "metrics": Part("scores of predictions and of rankings, batch by batch", "system"),
    "labels": Part("kinds of labels as values: check, loss, prediction, scores", "metrics system"),
    "data": Part(
        "click logs to batches: schema, readers, encoder, conversion", "labels parsing system"
    ),
    "sparse_tensor": Part(
        "RowSparse, coalescing and its kernels", "backend kernels runtime system", True
    ),
    "ops": Part(
        "operators on ids and ragged rows, and the shapes operators require",
        "backend kernels",
        True,
    ),
    "ad": Part(
        "reverse pass, rules, join and densify", "backend kernels ops sparse_tensor system", True
    ),
    "tables": Part(
        "the rows of a parameter: weights, slots, what they missed; formulas that update them",
        "backend kernels runtime sparse_tensor system",
        True,
    ),
    "embedding": Part(
        "lookups and bags as operators, collections of tables",
        "ad backend kernels ops runtime sparse_tensor system",
        True,
    ),
    "compiler": Part(
        "programs: checks, half precision, schedules, cache of compiled code",
        "ad backend embedding kernels ops runtime system",
        True,
    ),
    "optim": Part(
        "formulas, the kernels made from them, the update of a step",
        "backend checkpoint compiler kernels runtime sparse_tensor system tables",
        True,
    ),
    "models": Part(
        "models of clicks, ratings and sequences, and the base classes of your own",
        "ad backend compiler data embedding kernels labels ops runtime system",
        True,
    ),
    "training": Part(
        "Trainer: the step, the loop, runs, saved models",
        "ad backend checkpoint compiler data kernels labels metrics models optim runtime system "
        "tables",
        True,
    ),
    "backends": Part(
        "the CPU and CUDA, which register themselves",
        "backend compiler data embedding kernels models ops optim runtime sparse_tensor system "
        "tables training",
        True,
    ),
    "torch": Part(
        "tables in loops of PyTorch, its modules as models here",
        "ad compiler embedding models optim runtime sparse_tensor tables",
        True,
    ),
    "compare": Part(
        "cost of sparse and dense updates on this machine",
        "data optim runtime sparse_tensor system training",
        True,
    ),
    "sklearn": Part(
        "estimators in scikit-learn's conventions",
        "checkpoint data labels models optim training",
        True,
    ),
    "verify": Part(
        "proofs on this machine of what the package promises",
        "backend checkpoint compiler data models optim runtime sparse_tensor training",
        True,
    ),
    "serving": Part(
        "exported models: a library in C, its use from Python, deltas, an HTTP server",
        "checkpoint compiler data models parsing runtime system training",
        True,
    ),
    "parallel": Part(
        "training on several processes, with sharded tables",
        "ad backend checkpoint compiler data embedding kernels models optim runtime sparse_tensor "
        "system tables training",
        True,
    ),
    "cli": Part(
        "the commands, on public names alone",
        "backend runtime serving system training verify",
        True,
    ),
}


def as_table() -> str:
    """Return the map as a page shows it."""
    rows = (f"| `{name}` | {part.summary} | {part.imports} |\n" for name, part in PARTS.items())
    return "| part | contents | may import |\n| --- | --- | --- |\n" + "".join(rows)


def page_with_map(page: str) -> str:
    """Return a page with the map of today between its marks."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + as_table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page_with_map(PAGE.read_text()))
