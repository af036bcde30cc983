# SPDX-License-Identifier: Apache-2.0
"""Text files: the same rows as from parquet, line numbers in messages, any cut into blocks."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder, Schema, TextFormat
from sparsetrain.data.read.text_blocks import find_dialect, read_blocks
from sparsetrain.data.read.text_rows import parse_block
from sparsetrain.errors import DataError
from tests.data.criteo_tables import assert_batches_equal, joined, make_rows, table

ROWS = make_rows()
NAMES = tuple(ROWS)
ENCODER = Encoder.fit(table(ROWS), min_count=2, schema=Schema(text=TextFormat(names=NAMES)))
PLAIN = Encoder.fit(table(ROWS), min_count=2)  # reads names from each file
EXPECTED = ENCODER.encode(table(ROWS))


def lines(delimiter="\t", header=False, end="\n"):
    rows = [["" if v is None else str(v) for v in row] for row in zip(*ROWS.values(), strict=True)]
    return "".join(delimiter.join(row) + end for row in ([list(NAMES)] if header else []) + rows)


WAYS = {
    "tabs": ("a.tsv", lines()),
    "tabs and CRLF": ("a.tsv", lines(end="\r\n")),
    "no newline at the end": ("a.tsv", lines()[:-1]),
    "blank lines": ("a.txt", "\n" + lines().replace("\n", "\n\n")),
    "a byte order mark": ("a.tsv", "\ufeff" + lines()),
    "no suffix, as Criteo's days": ("day_0", lines()),
}


@pytest.mark.parametrize("name, text", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("zipped", [False, True])
def test_text_is_read_as_parquet_is(name, text, zipped, tmp_path):
    path = tmp_path / (name + ".gz" * zipped)
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    assert_batches_equal(joined(Dataset(path, ENCODER).batches(7)), EXPECTED)


@pytest.mark.parametrize("delimiter", [",", ";", "|"])
def test_a_header_names_the_columns(delimiter, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(lines(delimiter, header=True))
    schema = Schema(text=TextFormat(delimiter=delimiter))
    encoder = Encoder.fit(path, min_count=2, schema=schema)
    assert_batches_equal(joined(Dataset(path, encoder).batches(7)), EXPECTED)


def test_an_index_without_a_name_is_a_column_that_is_not_used(tmp_path):
    path = tmp_path / "a.csv"
    header, *rows = lines(",", header=True).splitlines()
    indexed = [f",{header}", *(f"{number},{row}" for number, row in enumerate(rows))]
    path.write_text("\n".join(indexed))
    encoder = Encoder.fit(path, min_count=2)
    assert_batches_equal(joined(Dataset(path, encoder).batches(7)), EXPECTED)


@pytest.mark.parametrize(
    "use",
    [lambda path: Encoder.fit(path), lambda path: list(Dataset(path, PLAIN).batches(7, seed=0))],
    ids=["learnt from", "read"],
)
def test_a_header_alone_is_no_rows(use, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(lines(",", header=True).splitlines()[0] + "\n")
    with pytest.raises(DataError, match=r"a\.csv: no rows$"):
        use(path)


@pytest.mark.parametrize("rows", [10, 40_000])
def test_a_quoted_field_without_an_end_is_refused_by_its_line(rows, tmp_path):
    path = tmp_path / "a.csv"
    text = [f"{n % 2},{n},a" for n in range(rows)]
    text[4] = '0,4,"a'
    path.write_text("\n".join(["label,I1,C1", *text, ""]))
    with pytest.raises(DataError, match=r"a\.csv: line 6: a quoted field has no end; close the"):
        Encoder.fit(path, min_count=1)
    for field in ('5" a', '"a""b"', '"a",'):
        text[4] = f"0,4,{field}".removesuffix(",")
        path.write_text("\n".join(["label,I1,C1", *text, ""]))
        assert len(joined(Dataset(path, Encoder.fit(path, min_count=1)).batches(64)).ids) == rows


def test_quoted_fields_may_hold_delimiters_and_newlines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('label,I1,C1\n1,2,"a,b"\n0,3,"c\nd"\n0,x,"say ""no"""\n')
    encoder = Encoder.fit(path, min_count=1)
    assert encoder.rows == [5]
    with pytest.raises(DataError, match=r"a\.csv: line 5, column I1: 'x' is not a number"):
        list(Dataset(path, encoder).batches(4))


@pytest.mark.parametrize("words", [("True", "False"), ("TRUE", "false"), ("1", "False")])
def test_booleans_are_read_from_text_as_from_parquet(words, tmp_path):
    clicks = [True, False, False, True]
    rows = [f"{words[not click]},{words[click]},a" for click in clicks]
    (tmp_path / "a.csv").write_text("\n".join(["label,I1,C1", *rows, ""]))
    table = pa.table({"label": clicks, "I1": [not c for c in clicks], "C1": ["a"] * 4})
    pq.write_table(table, tmp_path / "a.parquet")
    batches = []
    for name in ("a.csv", "a.parquet"):
        encoder = Encoder.fit(tmp_path / name, min_count=1)
        batches += Dataset(tmp_path / name, encoder).batches(4)
    assert_batches_equal(*batches)
    assert batches[0].labels.tolist() == clicks


@pytest.mark.parametrize("size", [1, 7, 40, 1000, 10**6])
@pytest.mark.parametrize("quoted", [False, True])
def test_blocks_are_whole_rows_and_lose_nothing(size, quoted, tmp_path):
    path = tmp_path / "a.csv"
    text = b'1,"two\nlines",3\n' * 9 if quoted else b"1,22,3\n" * 9
    path.write_bytes(text)
    whole = max(size, 20)  # a block holds at least one row
    blocks = list(read_blocks(str(path), quoted, block_bytes=whole))
    assert b"".join(block.data.tobytes() for block in blocks) == text
    line = 1
    for block in blocks:
        data = block.data.tobytes()
        assert data.endswith(b",3\n") and block.first_line == line
        line += data.count(b"\n")


def test_every_row_knows_its_line(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("1\t2\n\n3\t4\t5\n6\t7\n\r\n8\n9\t9\n")
    dialect = find_dialect(str(path), TextFormat(names=("a", "b")))
    (block,) = read_blocks(str(path), dialect.quoted)
    parsed = parse_block(block, dialect, str(path))
    assert parsed.lines.tolist() == [1, 4, 7]
    assert [(bad.number, bad.text) for bad in parsed.bad] == [(3, "3\t4\t5"), (6, "8")]


BAD = {
    "39 fields": (lambda t: t.replace("\n0\t", "\n", 1), "fields, expected 8"),
    "a word": (lambda t: "x" + t[1:], "line 1, column label: 'x"),
    "label 2": (lambda t: "2" + t[1:], "line 1, column label: the label is 2; it must be 0 or 1"),
    "nothing": (lambda t: "", "the file is empty (0 bytes)"),
}


@pytest.mark.parametrize("damage, message", BAD.values(), ids=BAD.keys())
def test_bad_text_is_named_by_line(damage, message, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(damage(lines()))
    with pytest.raises(DataError) as caught:
        list(Dataset(path, ENCODER).batches(8))
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_gzip_is_named_by_line(tmp_path):
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(lines().encode())[:-40])
    with pytest.raises(DataError, match=r"a\.tsv\.gz: after line \d+: cannot be read on"):
        list(Dataset(path, ENCODER).batches(8))


def test_text_without_names_is_refused_with_both_ways_out(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("1\t2\t3\n")
    with pytest.raises(DataError, match=r"3 fields without names .*names = \[\.\.\.\]"):
        Encoder.fit(path)


def test_names_in_quotes_are_refused_where_quotes_are_letters(tmp_path):
    header = ",".join(f'"{name}"' for name in NAMES) + "\n"
    (tmp_path / "a.csv").write_text(header + lines(","))
    assert_batches_equal(joined(Dataset(tmp_path / "a.csv", PLAIN).batches(7)), EXPECTED)
    path = tmp_path / "a.tsv"
    path.write_text(header.replace(",", "\t") + lines())
    with pytest.raises(DataError, match='a.tsv: line 1: the name "label" is in double quotes'):
        Encoder.fit(path)


def test_a_stream_is_shuffled_and_resumed_too(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(lines())
    dataset = Dataset(path, ENCODER)
    batches = list(dataset.batches(7, seed=1, buffer_rows=20))
    rest = list(dataset.batches(7, seed=1, buffer_rows=20, position=batches[3].position))
    for found, expected in zip(rest, batches[4:], strict=True):
        assert_batches_equal(found, expected)
    assert sorted(np.concatenate([b.dense[:, 0] for b in batches])) == sorted(EXPECTED.dense[:, 0])


WRONG_DELIMITER = [("a.csv", "label;I1;C1"), ("b.csv", "label\tI1"), ("a.tsv", "label,I1")]


@pytest.mark.parametrize("name, line", WRONG_DELIMITER)
def test_a_line_of_one_field_asks_for_the_delimiter(tmp_path, name, line):
    (tmp_path / name).write_text(f"{line}\n")
    with pytest.raises(DataError, match=r"if '.*' is the delimiter, set it in a schema file"):
        Dataset(tmp_path / name, None)


@pytest.mark.parametrize("null", ["\\N", "NULL", "na", "-"])
def test_a_text_that_may_mean_missing_is_said_to_be_one_that_can(tmp_path, null):
    path = tmp_path / "a.csv"
    path.write_text(f"label,I1,C1\n1,2,x\n0,{null},y\n")
    encoder = Encoder.fit(path)
    with pytest.raises(DataError, match=r"line 3, column I1.*\[text\] null"):
        list(Dataset(path, encoder).batches(2))
    known = Encoder.fit(path, schema=Schema(text=TextFormat(null=(null,))))
    assert len(next(Dataset(path, known).batches(2))) == 2
