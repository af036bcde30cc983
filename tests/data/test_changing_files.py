# SPDX-License-Identifier: Apache-2.0
"""Files that are written, cut off or exchanged while they are read."""

import gzip
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder, Schema
from sparsetrain.data.read import text_blocks
from sparsetrain.errors import DataError

SCHEMA = Schema("y", ("n",), ("c",))
ROWS = 9_000
TABLE = pa.table({"y": [0, 1] * (ROWS // 2), "n": [1.0] * ROWS, "c": [*range(9)] * (ROWS // 9)})
ENCODER = Encoder.fit(TABLE, schema=SCHEMA)
# Read as the file that was opened, the bits of its floats would be integers.
OTHER = TABLE.set_column(2, "c", pa.array([1.5] * ROWS))


def write_parquet(table, file):
    plain = {"use_dictionary": False, "compression": None, "write_statistics": False}
    pq.write_table(table, file, row_group_size=ROWS // 9, **plain)


def write_text(table, file):
    lines = (",".join(map(str, row.values())) for row in table.to_pylist())
    file.write_text("".join(f"{line}\n" for line in ("y,n,c", *lines)))


def append(file, more):
    with file.open("ab") as open_:
        open_.write(more)


CHANGES = {
    "grown": lambda file: append(file, b"1,2.0,3\n"),
    "half a line more": lambda file: append(file, b"1,2.0,3"),
    "cut off": lambda file: os.truncate(file, file.stat().st_size // 2),
    "empty": lambda file: os.truncate(file, 0),
}


def read_while(change, file):
    batches = Dataset(file, ENCODER).batches(100)
    next(batches)
    change(file)
    return sum(len(batch) for batch in batches) + 100


@pytest.mark.parametrize("change", CHANGES)
def test_text_that_changes_while_it_is_read_is_refused(change, tmp_path, monkeypatch):
    monkeypatch.setattr(text_blocks.read_blocks, "__defaults__", (1 << 13,))
    write_text(TABLE, file := tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"a\.csv: after line \d+: the file had .* when it"):
        read_while(CHANGES[change], file)


@pytest.mark.parametrize("rows", [1, ROWS], ids=["a row", "all rows"])
@pytest.mark.parametrize("end", ["csv", "csv.gz", "csv.zst"])
def test_text_that_is_written_anew_at_the_same_length_is_refused(end, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(text_blocks.read_blocks, "__defaults__", (1 << 13,))
    labels = [1 - y if row < rows else y for row, y in enumerate(TABLE["y"].to_pylist())]
    write_text(TABLE, before := tmp_path / "before.csv")
    write_text(TABLE.set_column(0, "y", pa.array(labels)), after := tmp_path / "after.csv")
    old, new = (PACK[end](path.read_bytes()) for path in (before, after))
    assert len(old) == len(new) and old != new
    (file := tmp_path / f"a.{end}").write_bytes(old)
    os.utime(file, (1, 1))
    with pytest.raises(DataError, match=r"a\.csv.*: the file was rewritten while|CRC check fail"):
        read_while(lambda file: file.write_bytes(new), file)


def stored(text):
    """A frame of zstd that holds blocks of text as they are."""
    parts = [text[first : first + (1 << 16)] for first in range(0, len(text), 1 << 16)]
    heads = [len(part) << 3 | (part is parts[-1]) for part in parts]
    blocks = (h.to_bytes(3, "little") + p for h, p in zip(heads, parts, strict=True))
    return b"\x28\xb5\x2f\xfd" + b"\xa0" + len(text).to_bytes(4, "little") + b"".join(blocks)


PACK = {"csv": bytes, "csv.gz": lambda text: gzip.compress(text, 0, mtime=0), "csv.zst": stored}


@pytest.mark.parametrize("change", [*CHANGES, "another"])
def test_parquet_that_was_exchanged_is_refused_by_row_group(change, tmp_path):
    write_parquet(TABLE, file := tmp_path / "a.parquet")
    exchange = CHANGES.get(change, lambda file: write_parquet(OTHER, file))
    with pytest.raises(DataError, match=r"a\.parquet: row group \d: the file was rewritten"):
        read_while(exchange, file)


@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_a_file_that_is_touched_or_whose_name_goes_to_its_equal_is_read_on(end, tmp_path):
    write = write_text if end == "csv" else write_parquet
    write(TABLE, file := tmp_path / f"a.{end}")
    write(TABLE, equal := tmp_path / f"b.{end}")
    assert read_while(lambda _: os.replace(equal, file), file) == ROWS
    assert read_while(lambda _: os.utime(file, (1, 1)), file) == ROWS
