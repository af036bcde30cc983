# SPDX-License-Identifier: Apache-2.0
"""The recipes of docs/extending.md, followed in a copy of the package: three files are enough."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"
SIGNUM = '''"""Signum: steps of one size, in the direction of an average of gradients."""

from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.arguments import Options, Unpack, make_optimizer
from sparsetrain.optim.update_rule import Number
from sparsetrain.tables.formula import Formula, Slot, sign


def _step(w, g, slots, h):
    (mean,) = slots
    mean = h.momentum * mean + (1 - h.momentum) * g
    return w - h.lr * sign(mean), (mean,)


SIGNUM = Formula("signum", _step, (Slot("mean"),), noop_on_zero_grad="untouched")


def signum(lr: Number, *, momentum: float = 0.9, **options: Unpack[Options]) -> Optimizer:
    """Signum: ``m <- momentum m + (1 - momentum) g``, then ``w <- w - lr sign(m)``.

    References
    ----------
    Bernstein et al. 2018, https://arxiv.org/abs/1802.04434

    Examples
    --------
    >>> import sparsetrain as st
    >>> st.optim.signum(0.1)
    <Optimizer: signum, lr=0.1, momentum=0.9>
    """
    return make_optimizer(SIGNUM, {"lr": lr, "momentum": momentum}, options)
'''
NFM = '''"""Neural factorization machine without hidden layers."""

from collections.abc import Sequence
from typing import Any

from tvm.relax.frontend import nn

from sparsetrain.models.field_model import FieldModel


class NFM(FieldModel):
    """NFM-0 (He, Chua 2017): ``b + sum_i w_i + h . sum_{i<j} v_i * v_j``.

    Parameters
    ----------
    rows, num_dense
        As in `ClickModel`.
    dim : int
        Width of the vectors v.
    **rest
        As in `ClickModel`.
    """

    kind = "nfm"
    has_weights = True

    def __init__(
        self, rows: Sequence[int], dim: int = 16, num_dense: int = 13, **rest: Any
    ) -> None:
        super().__init__(rows, dim, num_dense, **rest)
        self.pooled = nn.Linear(self.dim, self.num_labels, bias=False)

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense), (B, F, T + dim) -> (B, T)."""
        linear, vectors = self.first_order(dense, embedded)
        total = nn.op.sum(vectors, axis=1)  # (B, dim)
        pairs = (total * total - nn.op.sum(vectors * vectors, axis=1)) * 0.5
        return linear + self.pooled(pairs)
'''
PSV = '''"""Text whose fields are separated by bars."""

from dataclasses import replace

from sparsetrain.data.read.source import Part
from sparsetrain.data.read.text_rows import text_parts
from sparsetrain.data.schema.schema import Schema


def is_psv(head: bytes) -> bool:
    """Return whether the first line of a file that begins so has bars."""
    return b"|" in head.partition(b"\\n")[0]


def psv_parts(file: str, schema: Schema) -> list[Part]:
    """Open a file as text with this delimiter."""
    return text_parts(file, replace(schema, text=replace(schema.text, delimiter="|")))
'''
PREFIX = '''"""The first characters of text."""

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from sparsetrain.data.derived.kind import TEXTS, Column, Kind, Takes, check_counts
from sparsetrain.data.values.arrow_types import as_plain


@dataclass(frozen=True)
class Prefix(Kind):
    """So many characters."""

    key: ClassVar[str] = "prefix"
    type: ClassVar[pa.DataType] = pa.large_string()
    takes: ClassVar[Takes] = TEXTS

    prefix: int | None = None

    def check(self, where: str) -> None:
        """Refuse a number below 1."""
        check_counts(where, self, ("prefix",))

    def make(self, *columns: Column) -> pa.Array:
        """Return text."""
        ((array, _),) = columns
        return pc.utf8_slice_codeunits(as_plain(array).cast(pa.large_string()), 0, self.prefix)
'''
CYCLE = '''"""Places in a cycle, such as hours of a day, as their sine and cosine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sparsetrain.data.dense.kind import Dense, Kind
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.arrow_values import NanRule, read_numbers
from sparsetrain.system.argument_checks import require_int


@dataclass(frozen=True, kw_only=True)
class Cycles(Kind):
    """Columns of places in a cycle, and the places that it has."""

    key: ClassVar[str] = "cycles"

    cycles: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def checked(where: str, option: Any) -> int:
        """Return a number of places, of 2 or more."""
        return require_int(where, option, 2)

    @staticmethod
    def column(name: str, option: int) -> Cycle:
        """Return a column of a cycle with so many places."""
        return Cycle(name, places=option)


@dataclass(frozen=True)
class Cycle(Dense):
    """Numbers from 0 to `places`."""

    places: int = 2

    @property
    def inputs(self) -> dict[int, str]:
        """The place of each input, and its name in converted data."""
        return {self.place: f"{self.name}_sin", self.place + 1: f"{self.name}_cos"}

    def read(self, array: Any, location: Location) -> tuple[Array, Array]:
        """Return numbers (n,) float64, 0 where missing, and which are missing (n,) bool."""
        return read_numbers(array, NanRule(), location)

    def write(self, array: Any, location: Location, dense: Array) -> None:
        """Write its inputs, rows of `dense` (F_dense, n) float32."""
        values, missing = self.read(array, location)
        angles = values * (2 * np.pi / self.places)
        dense[self.place] = np.sin(angles) * ~missing
        dense[self.place + 1] = np.cos(angles) * ~missing
'''
SIGNUM_STEP = """def signum(w, g, s, t, lr, momentum=0.9):
    s["m"] = momentum * s["m"] + (1 - momentum) * g
    return w - lr * np.sign(s["m"])


"""
NFM_EQUATION = """def _nfm(params, config, vectors, flat):
    pairs = sum(vectors[:, i] * vectors[:, j] for i, j in _pairs(vectors))
    return _linear(params, "pooled", pairs)[:, 0]


"""
# Recipe -> what is added, and by file a new file's text, or lines and those before which they go.
RECIPES = {
    "An optimizer": (
        "signum",
        {
            "sparsetrain/optim/formulas/signum.py": SIGNUM,
            "sparsetrain/optim/__init__.py": {
                "from sparsetrain.optim.gradients import accumulate_": (
                    "from sparsetrain.optim.formulas.signum import signum as signum\n"
                ),
                "}\n\n__all__": '    "signum": signum,\n',
            },
            "tests/optim/references.py": {
                "class Reference(": SIGNUM_STEP,
                '    "ftrl": Reference(': '    "signum": Reference(signum, {"": {}}),\n',
            },
        },
    ),
    "A model": (
        "nfm",
        {
            "sparsetrain/models/nfm.py": NFM,
            "sparsetrain/models/__init__.py": {
                "from sparsetrain.models.arguments": (
                    "from sparsetrain.models.nfm import NFM as NFM\n"
                ),
                "    )\n}\n\n\ndef kind_of": "        NFM,\n",
            },
            "tests/models/equations.py": {
                "# Kind in `MODELS`": NFM_EQUATION,
                '    "widedeep": (': '    "nfm": ({}, over_fields(_nfm)),\n',
            },
        },
    ),
    "A category column of a new kind": (
        "prefix",
        {
            "sparsetrain/data/derived/prefix.py": PREFIX,
            "sparsetrain/data/schema/derived.py": {
                "from sparsetrain.data.derived.separator": (
                    "from sparsetrain.data.derived.prefix import Prefix\n"
                ),
                "    Separator,\n": "    Prefix,\n",
            },
            "tests/data/test_derived.py": {
                '    "separator": (': (
                    '    "prefix": ({"prefix": 2}, {"x": ["abc", "a", None]}, ["ab", "a", None]),\n'
                ),
            },
        },
    ),
    "A column of dense inputs": (
        "cycle",
        {
            "sparsetrain/data/dense/cycle.py": CYCLE,
            "sparsetrain/data/schema/schema.py": {
                "from sparsetrain.data.dense.kind": (
                    "from sparsetrain.data.dense.cycle import Cycles\n"
                ),
                "    Vectors,\n": "    Cycles,\n",
            },
            "tests/data/test_dense_kinds.py": {
                '    "vectors": (': (
                    '    "cycles": (4, [0, 1, None], [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]),\n'
                ),
            },
        },
    ),
    "A file format": (
        "psv",
        {
            "sparsetrain/data/read/psv.py": PSV,
            "sparsetrain/data/read/open_source.py": {
                "from sparsetrain.data.read.source": (
                    "from sparsetrain.data.read.psv import is_psv, psv_parts\n"
                ),
                "    FileFormat(tuple(DELIMITERS)": (
                    '    FileFormat((".psv",), is_psv, psv_parts),\n'
                ),
            },
            "tests/data/test_formats.py": {
                '    ".csv": text(': '    ".psv": text("|"),\n',
            },
        },
    ),
}
# Tests that miss an entry.
MISSING = {
    "tests/optim/test_references.py": "test_every_optimizer_has_a_reference",
    "tests/models/test_field_models.py": "test_every_model_has_an_equation",
    "tests/data/test_derived.py": "test_every_kind_has_values",
    "tests/data/test_dense_kinds.py": "test_every_kind_has_inputs",
    "tests/data/test_formats.py": "test_every_suffix_has_a_writer",
}
# Others that are made of the tables; each also runs on what is added, by its name.
OTHERS = {
    "tests/test_public.py": "test_the_public_names_are_these",
    "tests/cli/test_settings.py": "test_the_settings_of_an_optimizer or "
    "test_every_section_fits or test_every_setting_says or test_a_wrong_setting",
    "tests/optim/test_arguments.py": "test_an_option_that_a_formula_does_not_have",
    "tests/optim/test_exact.py": "",
    "tests/optim/test_formula_examples.py": "",
    "tests/models/test_arguments.py": "",
}


def files_of(recipe: str) -> list[str]:
    """Files of the recipe's numbered list, each the first name of its item."""
    page = (ROOT / "docs" / "extending.md").read_text()
    (text,) = re.findall(rf"^\*\*{recipe}\.?\*\*(.*?)(?=^\*\*|\Z)", page, re.DOTALL | re.MULTILINE)
    return re.findall(r"^\d\. `([\w/<>]+\.py)`", text, re.MULTILINE)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_names_three_files(recipe):
    name, changes = RECIPES[recipe]
    files = [file.replace("<name>", name) for file in files_of(recipe)]
    inside = [file if is_test(file) else f"sparsetrain/{file}" for file in files]
    assert inside == [*changes] and len(files) == 3


def is_test(file: str) -> bool:
    return file.startswith("tests/")


def follow(copy: Path, tests: bool) -> None:
    """Make the changes of all recipes to the package, or those to its tests."""
    changes = [change for _, changes in RECIPES.values() for change in changes.items()]
    for file, change in changes:
        if is_test(file) != tests:
            continue
        path = copy / file
        if isinstance(change, str):
            assert not path.exists()
            path.write_text(LICENCE + change)
            continue
        text = path.read_text()
        for before, lines in change.items():
            assert text.count(before) == 1, before
            text = text.replace(before, lines + before)
        path.write_text(text)


def changed(copy: Path) -> list[str]:
    """Files that are new in the copy, or that differ."""
    files = [path.relative_to(copy) for path in copy.rglob("*.py")]
    before = {f: (ROOT / f).read_bytes() if (ROOT / f).exists() else b"" for f in files}
    return [str(f) for f in files if (copy / f).read_bytes() != before[f]]


def results(copy: Path, *options: str) -> dict[str, str]:
    """Run tests of the copy; return each, with its message where it failed, and the outcome."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *options]
    hidden = ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    env |= {"PYTHONPATH": str(copy), "COLUMNS": "500"}
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)
    lines = re.findall(r"^(PASSED|FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE)
    assert lines, done.stdout + done.stderr
    return {test: outcome for outcome, test in lines}


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    for name in ("sparsetrain", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_what_is_added_by_the_recipes_is_tested_and_what_is_not_is_missed(copy):
    follow(copy, tests=False)
    missed = results(copy, *MISSING, "-k", " or ".join(MISSING.values()))
    assert {*missed.values()} == {"FAILED"}
    for name, _ in RECIPES.values():
        assert len([test for test in missed if re.search(rf"'\.?{name}s?'", test)]) == 1, missed
    follow(copy, tests=True)
    assert len(changed(copy)) == 3 * len(RECIPES)
    tests = MISSING | OTHERS
    chosen = " or ".join(filter(None, [*(name for name, _ in RECIPES.values()), *tests.values()]))
    found = results(copy, *tests, "-k", chosen, "-m", "slow or not slow")
    assert [test for test, outcome in found.items() if outcome != "PASSED"] == []
    for name, _ in RECIPES.values():
        assert any(name in test for test in found), name
