# SPDX-License-Identifier: Apache-2.0
"""Answers of exported libraries: one asked by the C example, one with lists by Python."""

import subprocess
from pathlib import Path

from sparsetrain.serving.export import export
from sparsetrain.serving.model import Model
from tests.golden import runs
from tests.serving import logs
from tests.serving.test_c_interface import build_example, write_rows

CPU = "x86-64-v3"  # so one CPU's answers are any other's
SINGLE, LISTS = "derived-linear-flags", "lists-weights-two-labels"


def found(folder: Path) -> dict[str, list[float]]:
    """Return what two libraries say of forty rows; `folder` is empty."""
    return {"C": _asked_by_c(folder), "Python": _asked_by_python(folder)}


def _exported(name: str, folder: Path) -> Path:
    out = folder / f"{name} exported"
    export(runs.unpacked(name, folder), out, cpu=CPU)
    return out


def _asked_by_c(folder: Path) -> list[float]:
    exported = _exported(SINGLE, folder)
    columns = {k: v for k, v in logs.rows_of(40, 6).items() if k in logs.SCHEMA.wanted}
    columns["site"] = [text and text.replace("\0", "") for text in columns["site"]]
    write_rows(folder / "rows.tsv", columns)
    command = [build_example(exported, folder), exported, folder / "rows.tsv"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def _asked_by_python(folder: Path) -> list[float]:
    model = Model(_exported(LISTS, folder))
    return model.predict(logs.rows_of(40, 6)).ravel().tolist()
