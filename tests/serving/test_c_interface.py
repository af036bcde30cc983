# SPDX-License-Identifier: Apache-2.0
"""The example in C is built with a compiler, and gives the predictions of the trainer."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from sparsetrain.serving.libraries import compiler
from tests.serving.logs import SCHEMA, frame, rows_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "serving" / "predict.c"


@pytest.fixture(scope="module")
def program(exported, tmp_path_factory) -> Path:
    _, folder = exported["ids"]
    built = tmp_path_factory.mktemp("built") / "predict"
    flags = ["-O1", "-Wall", "-Werror", "-I", str(folder), f"-Wl,-rpath,{folder}"]
    library = str(folder / "libsparsetrain.so")
    subprocess.run([*compiler(), str(EXAMPLE), library, *flags, "-o", str(built)], check=True)
    return built


def write_rows(path: Path, columns: dict[str, list]) -> None:
    lines = ["\t".join(columns)]
    lines += [
        "\t".join("" if v is None else str(v) for v in row)
        for row in zip(*columns.values(), strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")


def test_the_example_predicts_what_the_trainer_does(exported, program, tmp_path):
    trainer, folder = exported["ids"]
    columns = {key: values for key, values in rows_of(60, 5).items() if key in SCHEMA.wanted}
    columns["site"] = [text and text.replace("\0", "") for text in columns["site"]]
    write_rows(tmp_path / "rows.tsv", columns)
    made = subprocess.run([program, folder, tmp_path / "rows.tsv"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    found = np.array(made.stdout.split(), np.float32)
    np.testing.assert_array_equal(found, trainer.predict(frame(columns, SCHEMA)))
    timed = [program, folder, tmp_path / "rows.tsv", "5"]
    assert "p99" in subprocess.run(timed, capture_output=True, text=True, check=True).stdout


def test_errors_are_a_code_and_a_line(exported, program, tmp_path):
    _, folder = exported["ids"]
    write_rows(tmp_path / "rows.tsv", {"age": ["x"], "price": [1.0], "user": [1]})
    made = subprocess.run([program, folder, tmp_path / "rows.tsv"], capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (2, "column site is missing\n")
    made = subprocess.run(
        [program, tmp_path, tmp_path / "rows.tsv"], capture_output=True, text=True
    )
    assert made.returncode == 1 and made.stderr.count("\n") == 1
