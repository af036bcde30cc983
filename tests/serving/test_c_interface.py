# SPDX-License-Identifier: Apache-2.0
"""The example in C gives the predictions of the trainer, and bad arguments give errors."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sparsetrain.errors import CheckpointError
from sparsetrain.serving import manifest
from sparsetrain.serving.libraries import compiler
from sparsetrain.serving.model import LIBRARY, Model
from tests.serving.logs import SCHEMA, frame, rows_of
from tests.serving.test_export import edited

EXAMPLE = Path(__file__).parents[2] / "examples" / "serving" / "predict.c"


@pytest.fixture(scope="module")
def program(exported, tmp_path_factory) -> Path:
    return build_example(exported["ids"][1], tmp_path_factory.mktemp("built"))


def build_example(exported: Path, folder: Path) -> Path:
    """Build the example with the library of an exported folder; return the program."""
    built = folder / "predict"
    flags = ["-O1", "-Wall", "-Werror", "-I", str(exported), f"-Wl,-rpath,{exported}"]
    library = str(exported / "libsparsetrain.so")
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


class StColumn(ctypes.Structure):
    """As in the header."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("values", "offsets", "missing", "bags")),
    )


@pytest.fixture(scope="module")
def library(exported):
    library = ctypes.CDLL(str(exported["ids"][1] / LIBRARY))
    library.st_column_name.restype = ctypes.c_char_p
    library.st_column_name.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.st_predict.argtypes = [
        *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int),
        *(ctypes.c_void_p, ctypes.c_char_p),
    ]
    return library


@pytest.fixture
def opened(library, exported):
    model, error = ctypes.c_void_p(), ctypes.create_string_buffer(512)
    assert not library.st_open(bytes(exported["ids"][1]), ctypes.byref(model), error)
    yield model
    library.st_close(model)


VALUES = (ctypes.c_int64 * 4)()
ARGUMENTS = {
    "no model": ({"model": None}, "give a model, columns and predictions"),
    "no predictions": ({"predictions": None}, "give a model, columns and predictions"),
    "no columns": ({"columns": None}, "give a model, columns and predictions"),
    "columns below 0": ({"count": -1}, "give a model, columns and predictions"),
    "no rows": ({"rows": 0}, "at least one row"),
    "rows below 0": ({"rows": -(2**62)}, "at least one row"),
    "rows beyond memory": ({"rows": 2**62}, "at most 1099511627776 rows"),
    "no name": ({"name": None}, "column number 1 has no name"),
    "no values": ({"values": None}, "column age: it has no values"),
    "text without offsets": ({"type": 2}, "column age: it has no values"),
    "an unknown type": ({"type": 3}, "column age: type 3 is unknown"),
    "a type below 0": ({"type": -1}, "column age: type -1 is unknown"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_an_argument_that_is_none_or_out_of_range_is_an_error(library, opened, case):
    changed, message = ARGUMENTS[case]
    first = {"type": 0, "values": ctypes.addressof(VALUES)} | {
        key: value for key, value in changed.items() if key in ("type", "values")
    }
    columns = (StColumn * 2)(
        StColumn(b"age", first["type"], first["values"]),
        StColumn(changed.get("name", b"unknown"), 0, ctypes.addressof(VALUES)),
    )
    arguments = {"model": opened, "rows": 1, "columns": columns, "count": 2}
    arguments |= {"predictions": ctypes.addressof(VALUES)}
    arguments |= {key: value for key, value in changed.items() if key in arguments}
    for error in (ctypes.create_string_buffer(512), None):
        assert library.st_predict(*arguments.values(), error) == 2
        assert error is None or message in error.value.decode()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_folder_of_an_earlier_format_is_to_be_exported_again(library, folder, number):
    edited(folder, f"sparsetrain.serving\t{manifest.FORMAT}", f"sparsetrain.serving\t{number}")
    with pytest.raises(CheckpointError, match="export it again"):
        Model(folder)
    model, error = ctypes.c_void_p(), ctypes.create_string_buffer(512)
    assert library.st_open(bytes(folder), ctypes.byref(model), error) == 1
    assert error.value.endswith(b"export it again")


def test_nothing_is_opened_of_nothing(library, exported):
    model, error = ctypes.c_void_p(1), ctypes.create_string_buffer(512)
    assert library.st_open(None, ctypes.byref(model), error) == 2 and not model
    assert library.st_open(bytes(exported["ids"][1]), None, error) == 2
    assert error.value == b"st_open: give a folder and a model"
    assert library.st_open(b"", ctypes.byref(model), error) == 1
    library.st_close(None)


def test_a_column_that_is_not_there_has_no_name(library, opened):
    count = library.st_num_columns(opened)
    names = [library.st_column_name(opened, at) for at in (-(2**31), -1, 0, count - 1, count)]
    assert names[:2] == [None, None] and all(names[2:4]) and names[4] is None
    assert library.st_column_name(None, 0) is None
    assert library.st_num_columns(None) == library.st_num_labels(None) == 0
