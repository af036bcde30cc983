# SPDX-License-Identifier: Apache-2.0
"""Text read by the numbers it spells: encoding, errors and bad rows as in text read by Arrow."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder, Schema, TextFormat, convert_files
from sparsetrain.data.read import text_blocks, text_rows
from sparsetrain.errors import DataError
from tests.data.criteo_tables import assert_batches_equal, joined

NAMES = ("label", "I1", "I2", "C1", "C2", "C3")


def columns(rows, seed=0):
    """Return columns of text: integers and hex digits, some of them missing."""
    rng = np.random.default_rng(seed)
    count = rng.integers(-3, 1000, (2, rows)).astype(str)
    ids = np.array([f"{n:08x}" for n in rng.integers(0, 1 << 32, 30)])[rng.integers(0, 30, rows)]
    eights = (rng.integers(0, 30, rows) + 12345670).astype(str)
    few = rng.integers(0, 9, rows).astype(str)
    values = [rng.integers(0, 2, rows).astype(str), *count, ids, eights, few]
    empty = [np.where(rng.random(rows) < 0.1, "", column) for column in values[1:]]
    return [values[0], *empty]


def with_cell(name, text, row=150):
    def damaged(values):
        of = [column.astype(object) for column in values]
        of[NAMES.index(name)][row] = text
        return of

    return damaged


CASES = {
    "plain": lambda values: values,
    "a fraction": with_cell("I1", "0.25"),
    "a sign before zero": with_cell("I1", "-0"),
    "a large number": with_cell("I2", "12345678901"),
    "8 digits in a dense column": with_cell("I2", "12345678"),
    "a word": with_cell("C1", "word"),
    "hex digits among decimal ones": with_cell("C2", "0badcafe"),
    "a large key": with_cell("C3", "99999999999"),
    "a key below zero": with_cell("C3", "-4"),
    "a boolean": with_cell("C3", "true"),
    "an empty column": lambda values: [*values[:5], np.full(len(values[0]), "")],
}


def write(path, values, delimiter="\t", end="\n", header=False):
    rows = [NAMES, *zip(*values, strict=True)] if header else zip(*values, strict=True)
    path.write_text("".join(delimiter.join(row) + end for row in rows), newline="")
    return path


@pytest.fixture
def ways(monkeypatch):
    """Return a function that runs another by numbers, then by text, and gives both results."""
    monkeypatch.setattr(text_rows, "LEAST_BYTES", 0)
    monkeypatch.setattr(text_blocks.read_blocks, "__defaults__", (1 << 12,))

    def run(function):
        results = []
        for read in (text_rows.read_numbers, lambda *_: {}):
            monkeypatch.setattr(text_rows, "read_numbers", read)
            results.append(function(len(results)))
        return results

    return run


SCHEMA = Schema(dense=NAMES[1:3], categories=NAMES[3:], text=TextFormat(names=NAMES))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_numbers_are_encoded_as_their_text(case, ways, tmp_path):
    path = write(tmp_path / "a.tsv", case(columns(400)))

    def encode(_):
        encoder = Encoder.fit(path, min_count=2, schema=SCHEMA)
        return encoder.fingerprint, joined(Dataset(path, encoder).batches(64))

    (digest, batch), (other, expected) = ways(encode)
    assert digest == other
    assert_batches_equal(batch, expected)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_numbers_are_converted_as_their_text(case, ways, tmp_path):
    path = write(tmp_path / "a.tsv", case(columns(400)))

    def convert(way):
        out = tmp_path / f"out{way}"
        summary = convert_files(path, out, min_count=2, schema=SCHEMA)
        return summary, pq.read_table(out / "part-00000.parquet")

    (summary, table), (other, expected) = ways(convert)
    assert summary["fingerprint"] == other["fingerprint"]
    assert summary["categories"] == other["categories"] and summary["dense"] == other["dense"]
    assert table.equals(expected)


@pytest.mark.parametrize("known", [True, False])
def test_another_encoder_says_how_8_digits_are_read(known, ways, tmp_path):
    learnt = columns(400, seed=1)
    learnt[4] = np.array([f"{int(n):08x}" for n in range(400)]) if known else learnt[5]
    first, path = write(tmp_path / "a.tsv", learnt), write(tmp_path / "b.tsv", columns(400))
    encoder = Encoder.fit(first, min_count=1, schema=SCHEMA)

    def encode(_):
        grown = encoder.extended(path)
        return grown.fingerprint, joined(Dataset(path, encoder).batches(64))

    (digest, batch), (other, expected) = ways(encode)
    assert digest == other
    assert_batches_equal(batch, expected)


FORMS = {
    "commas and a header": {"delimiter": ",", "header": True},
    "carriage returns": {"end": "\r\n"},
    "blank lines": {"end": "\n\n"},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_form_of_text_gives_the_same(form, ways, tmp_path):
    path = write(tmp_path / ("a.csv" if form.get("header") else "a.tsv"), columns(400), **form)
    text = TextFormat(form.get("delimiter"), form.get("header"), NAMES)
    encoder = Encoder.fit(path, schema=replace(SCHEMA, text=text))
    batch, expected = ways(lambda _: joined(Dataset(path, encoder).batches(64)))
    assert_batches_equal(batch, expected)


BAD = {
    "a label": with_cell("label", "2"),
    "a word for a number": with_cell("I1", "many"),
    "a field too many": with_cell("C3", "1\t2"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_bad_rows_are_reported_as_of_text(case, ways, tmp_path):
    path = write(tmp_path / "a.tsv", case(columns(400)))
    encoder = Encoder.fit(write(tmp_path / "b.tsv", columns(400)), schema=SCHEMA)

    def errors(way):
        out = tmp_path / f"out{way}"
        with pytest.raises(DataError) as read:
            list(Dataset(path, encoder).batches(64))
        convert_files(path, out, min_count=2, schema=SCHEMA, bad_rows="quarantine")
        noted = [json.loads(line) for line in (out / "_quarantine.jsonl").read_text().splitlines()]
        return str(read.value), noted

    (message, noted), (expected, other) = ways(errors)
    assert message == expected and re.search("line 151", message)
    assert noted == other and len(noted) == 1
