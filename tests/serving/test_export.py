# SPDX-License-Identifier: Apache-2.0
"""An exported model gives the bits of `predict`, and is refused where a byte of it is another."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from sparsetrain.errors import CheckpointError, ConfigError, DataError
from sparsetrain.serving import manifest
from sparsetrain.serving.export import export
from sparsetrain.serving.model import Model
from tests.serving.logs import BAGS, SCHEMA, frame, rows_of

SCHEMAS = {"ids": SCHEMA, "bags": BAGS}


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
        key: np.array(values) for key, values in whole.items() if key not in ("seen", "factor")
    }
    arrays["user"] = arrays["user"].astype(np.int32)
    arrays["hash"] = arrays["hash"].astype(np.uint64)
    expected = trainer.predict({k: arrays[k] for k in SCHEMA.wanted if k in arrays})
    np.testing.assert_array_equal(Model(folder).predict(arrays), expected)


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
    "no list": ({"user": 1}, "column user: it holds one value rather than a column"),
    "beyond 64 bits": ({"user": [2**70]}, "column user: an integer is beyond 64 bits"),
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
    import zlib

    (folder / manifest.FILE).write_bytes(body + b"end\t%08x\n" % zlib.crc32(body))


OTHERS = {
    "format": ("sparsetrain.serving\t2", "sparsetrain.serving\t1", "not an export of format 2"),
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


def test_what_others_may_write_is_refused(folder):
    for path in (folder, folder / "model.so", folder / "000.bin"):
        mode = path.stat().st_mode
        path.chmod(mode | 0o022)
        with pytest.raises(CheckpointError, match="others may write it"):
            Model(folder)
        path.chmod(mode)
    (folder / "000.bin").unlink()
    os.symlink("001.bin", folder / "000.bin")
    with pytest.raises(CheckpointError, match="000.bin"):
        Model(folder)


def test_what_cannot_be_exported_is_refused(exported, tmp_path):
    trainer, folder = exported["ids"]
    with pytest.raises(ConfigError, match="exists already"):
        export(trainer, folder, cpu="native")
    with pytest.raises(ConfigError, match="cpu is 'i386'"):
        export(trainer, tmp_path / "out", cpu="i386")
    assert not [*tmp_path.iterdir()]
