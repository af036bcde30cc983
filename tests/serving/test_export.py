# SPDX-License-Identifier: Apache-2.0
"""An exported model gives the bits of `predict`, and is refused where a byte of it is another."""

import signal
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.errors import CheckpointError, ConfigError, DataError
from sparsetrain.serving import manifest
from sparsetrain.serving.export import export
from sparsetrain.serving.model import LIBRARY, Model
from tests.serving.logs import BAGS, SCHEMA, frame, rows_of

SCHEMAS = {"ids": SCHEMA, "bags": BAGS}
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_predictions_equal_those_of_the_trainer_to_the_bit(exported, name, rows):
    trainer, folder = exported[name]
    columns = rows_of(rows, seed=rows)
    model = Model(folder)
    expected = trainer.predict(frame(columns, SCHEMAS[name]))
    np.testing.assert_array_equal(model.predict(columns), expected)
    each = [
        model.predict({key: [value[row]] for key, value in columns.items()}) for row in range(rows)
    ]
    np.testing.assert_array_equal(np.concatenate(each), expected)


def test_more_rows_than_a_call_takes_are_cut(exported):
    trainer, folder = exported["ids"]
    columns = rows_of(9_000, seed=1)
    expected = trainer.predict(frame(columns, SCHEMA))
    np.testing.assert_array_equal(Model(folder).predict(columns), expected)


def test_arrays_of_numpy_are_read_as_arrow_reads_them(exported):
    trainer, folder = exported["ids"]
    whole = {key: [v or 1 for v in values] for key, values in rows_of(50, seed=2).items()}
    arrays = {
        key: np.array(values)
        for key, values in whole.items()
        if key not in ("seen", "factor", "taste")
    }
    arrays["user"] = arrays["user"].astype(np.int32)
    arrays["hash"] = arrays["hash"].astype(np.uint64)
    expected = trainer.predict({k: arrays[k] for k in SCHEMA.wanted if k in arrays})
    np.testing.assert_array_equal(Model(folder).predict(arrays), expected)


@pytest.mark.parametrize("type_", [np.int8, np.int16, np.int32, np.int64, np.float32, list])
def test_a_number_below_0_is_the_same_value_in_every_type(exported, type_):
    trainer, folder = exported["ids"]
    columns = {key: [1 if v is None else v for v in vs] for key, vs in rows_of(2, 0).items()}
    known = Model(folder).predict(columns | {"user": ["-3", "-3"]})
    unknown = Model(folder).predict(columns | {"user": [99999, 99999]})
    given = [-3, -3] if type_ is list else np.array([-3, -3], type_)
    found = Model(folder).predict(columns | {"user": given})
    np.testing.assert_array_equal(found, known)
    np.testing.assert_array_equal(found, trainer.predict(frame(columns | {"user": given}, SCHEMA)))
    assert (found != unknown).all()


def test_threads_share_a_model(exported):
    trainer, folder = exported["ids"]
    model, columns, found = Model(folder), rows_of(40, seed=3), []
    threads = [
        threading.Thread(target=lambda: found.append(model.predict(columns))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = trainer.predict(frame(columns, SCHEMA))
    assert len(found) == 8 and all(np.array_equal(one, expected) for one in found)


def test_neither_tvm_nor_arrow_is_imported(exported):
    code = (
        "import sys; from sparsetrain.serving.model import Model; "
        f"Model({str(exported['ids'][1])!r}); "
        "sys.exit(any(name in sys.modules for name in ('tvm', 'tvm_ffi', 'pyarrow', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


BAD_VALUES = {
    "a column is missing": ({"age": None}, "column age is missing"),
    "text in a dense column": ({"age": ["x"]}, "column age: it holds text; give numbers"),
    "nan": ({"price": [float("nan")]}, "row 0, column price: the value is NaN"),
    "infinity": ({"price": [float("inf")]}, "row 0, column price: the value is infinite"),
    "too large": ({"price": [1e300]}, "row 0, column price: the value is too large for float32"),
    "half an id": ({"user": [1.5]}, "row 0, column user: it is not a whole number below 2"),
    "lists": ({"user": [[1]]}, "column user: it holds lists"),
    "text in time": ({"time": ["noon"]}, "column time: hour is derived from it"),
    "mixed": ({"user": [1, "x"]}, "column user: it holds int and str"),
    "no list": ({"user": 1}, "column user: it is a single value, not a column"),
    "beyond 64 bits": ({"user": [2**70]}, "column user: an integer exceeds 64 bits"),
    "another length": ({"user": [1, 2]}, "columns differ in length"),
}


@pytest.mark.parametrize("case", BAD_VALUES)
def test_a_bad_value_is_named(exported, case):
    bad, message = BAD_VALUES[case]
    columns = {key: value for key, value in {**rows_of(1, 0), **bad}.items() if value is not None}
    if "length" in case:
        columns |= {key: [1] for key in ("age", "price", "hash", "time")} | {"site": ["x"]}
    with pytest.raises(DataError, match=message):
        Model(exported["ids"][1]).predict(columns)


def test_weights_of_a_bag_are_as_many_as_its_ids(exported):
    columns = rows_of(2, 0) | {"seen": [["i1"], ["i2", "i3"]], "factor": [[1.0], [1.0]]}
    with pytest.raises(DataError, match="row 1, column factor: 1 weights for 2 ids"):
        Model(exported["bags"][1]).predict(columns)


def test_a_damaged_byte_of_any_file_is_refused(folder):
    rng = np.random.default_rng(0)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        (at,) = rng.integers(0, len(whole), 1)
        for content in (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole[:-1], whole):
            path.unlink()  # a library that is loaded must not change
            path.write_bytes(content)
            if content is not whole:
                with pytest.raises(CheckpointError, match=r"damaged|garbled|export it again"):
                    Model(folder)
    assert Model(folder).columns


def edited(folder, before: str, after: str) -> None:
    """Replace a text of the manifest, with a checksum that fits."""
    text = (folder / manifest.FILE).read_text()
    records = [line.split("\t") for line in text.replace(before, after).splitlines()[1:-1]]
    head = text.replace(before, after).encode().split(b"\n")[0]
    body = manifest.dump([tuple(r) for r in records]).rpartition(b"end\t")[0]
    body = head + body[body.index(b"\n") :]
    (folder / manifest.FILE).write_bytes(body + b"end\t%08x\n" % zlib.adler32(body))


OTHERS = {
    "format": ("sparsetrain.serving\t4", "sparsetrain.serving\t3", "not an export of format 4"),
    "cpu": (
        "cpu\tnative\t",
        "cpu\tnative\tavx1024 ",
        "CPU lacks avx1024: export with another --cpu",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_version_or_cpu_is_refused(folder, case):
    before, after, message = OTHERS[case]
    edited(folder, before, after)
    with pytest.raises(CheckpointError, match=message):
        Model(folder)


def test_an_export_for_another_kind_of_processor_is_refused(folder):
    whole = (folder / LIBRARY).read_bytes()
    made = whole[:18] + bytes([whole[18] ^ 0xFF]) + whole[19:]
    (folder / LIBRARY).unlink()
    (folder / LIBRARY).write_bytes(made)
    edited(folder, f"{zlib.crc32(whole):08x}", f"{zlib.crc32(made):08x}")
    with pytest.raises(
        CheckpointError, match="exported on a different kind of processor than this"
    ):
        Model(folder)


NAMES = [
    "\u2028",
    "a\u2029b",
    "\x85",
    "\x1c",
    " ",
    "\t",
    "a\nb",
    "%0a",
    "-c",
    "é",
    "\U0001f600",
    "a\rb",
]


def test_columns_of_any_name_can_be_asked(tmp_path):
    rng = np.random.default_rng(0)
    data = {name: rng.integers(0, 9, 50).tolist() for name in NAMES}
    schema = st.data.Schema(label="click", dense=NAMES[:2], categories=NAMES[2:])
    encoder = st.data.Encoder.fit(data | {"click": [0, 1] * 25}, schema=schema, min_count=1)
    model = st.models.DLRM(encoder.rows, 4, (8,), (8,), 2, names=encoder.columns)
    trainer = st.Trainer(model, st.optim.sgd(0.1), encoder=encoder)
    export(trainer, tmp_path / "out", cpu="native")
    served = Model(tmp_path / "out")
    assert served.columns == tuple(NAMES)
    np.testing.assert_array_equal(served.predict(data), trainer.predict(data))


def test_a_name_that_c_would_cut_is_refused(tmp_path):
    data = {"click": [0, 1], "I1": [0.0, 1.0], "a\0b": [1, 2], "a\0c": [1, 2]}
    schema = st.data.Schema(label="click", dense=("I1",), categories=("a\0b", "a\0c"))
    encoder = st.data.Encoder.fit(data, schema=schema, min_count=1)
    model = st.models.DLRM(encoder.rows, 2, (2,), (2,), 1, names=encoder.columns)
    with pytest.raises(ConfigError, match=r"the name 'a\\x00b' has a zero byte"):
        export(st.Trainer(model, st.optim.sgd(0.1), encoder=encoder), tmp_path / "out")
    assert not [*tmp_path.iterdir()]


TRUNCATED = """
import os, sys
from sparsetrain.serving.model import Model
from tests.serving.logs import rows_of

model = Model(sys.argv[1])
before = model.predict(rows_of(9, 1))
for name in os.listdir(sys.argv[1]):
    if not name.endswith(".so"):
        os.truncate(os.path.join(sys.argv[1], name), 0)
assert (model.predict(rows_of(9, 1)) == before).all()
"""


def test_small_files_are_read_so_nothing_happens_where_they_are_truncated(folder):
    subprocess.run([sys.executable, "-c", TRUNCATED, folder], check=True, cwd=ROOT)


MAPPED = """
import mmap, os, sys
from sparsetrain.serving.model import Model

model = Model(sys.argv[1])
os.truncate(sys.argv[1] + "/000.bin", mmap.PAGESIZE)
model.predict({"I1": [0.0], "C1": [70_000]})
"""


def test_a_large_file_that_is_truncated_ends_the_process(tmp_path):
    encoder = st.data.Encoder.fit(
        {"label": [0, 1], "I1": [0.0, 1.0], "C1": [1, 2]}, sizes=[80_000], treat_as="encoded"
    )
    model = st.models.DLRM(encoder.rows, 4, (2,), (2,), 1)
    export(st.Trainer(model, st.optim.sgd(0.1), encoder=encoder), tmp_path / "out", cpu="native")
    table = max((tmp_path / "out").glob("*.bin"), key=lambda path: path.stat().st_size)
    asked = MAPPED.replace("000.bin", table.name)
    ended = subprocess.run([sys.executable, "-c", asked, tmp_path / "out"], cwd=ROOT)
    assert ended.returncode == -signal.SIGBUS


def test_what_cannot_be_exported_is_refused(exported, tmp_path):
    trainer, folder = exported["ids"]
    with pytest.raises(ConfigError, match="exists already"):
        export(trainer, folder, cpu="native")
    with pytest.raises(ConfigError, match="cpu is 'i386'"):
        export(trainer, tmp_path / "out", cpu="i386")
    assert not [*tmp_path.iterdir()]
