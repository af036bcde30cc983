# SPDX-License-Identifier: Apache-2.0
"""Conversion: the same encoding as fitting in memory, any interruption, bad rows, damage."""

import filecmp
import json
import os
import random
import shutil
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder, convert_files
from sparsetrain.data.conversion import chunks, convert, learn
from sparsetrain.data.schema.schema import Schema
from sparsetrain.errors import ConfigError, DataError, ResourceError, SparsetrainError
from tests.data.criteo_tables import (
    LAYOUTS,
    assert_batches_equal,
    encoded_table,
    joined,
    make_rows,
    table,
    write,
)

ROWS = make_rows()
SMALL = {"memory": 1 << 29}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several chunks and files even of a few rows."""
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 40)
    monkeypatch.setattr(convert, "FILE_ROWS", 100)
    monkeypatch.setattr(convert, "GROUP_ROWS", 16)


@pytest.fixture
def raw(tmp_path):
    """Four files of rows that differ, 240 rows in all."""
    for seed in range(4):
        write(tmp_path / f"raw{seed}.parquet", table(make_rows(seed)))
    return str(tmp_path / "raw*.parquet")


def text_file(path, rows=ROWS):
    lines = zip(*rows.values(), strict=True)
    header = "\t".join(rows)
    body = "".join("\t".join("" if v is None else str(v) for v in row) + "\n" for row in lines)
    path.write_text(f"{header}\n{body}")
    return str(path)


def read(data, encoder):
    return joined(Dataset(data, encoder).batches(64))


def assert_converted(out, rows):
    """Compare converted rows with what an encoder fitted on them makes of them."""
    expected = Encoder.fit(rows, min_count=2).encode(rows)
    assert_batches_equal(read(out, Encoder.fit(out)), expected)


def without(bad, rows=ROWS):
    """Return a table of the rows but the bad ones."""
    kept = [row for row in range(60) if row not in bad]
    return table({name: [values[row] for row in kept] for name, values in rows.items()})


@pytest.mark.parametrize("options", [{}, {"missing_flags": True}, {"max_rows": 6}])
def test_conversion_learns_and_encodes_as_fitting_does(raw, tmp_path, options):
    summary = convert_files(raw, tmp_path / "out", min_count=2, **options)
    expected = Encoder.fit(raw, min_count=2, **options)
    converted = Encoder.fit(tmp_path / "out")
    assert converted.fingerprint == expected.fingerprint == summary["fingerprint"]
    assert converted.rare_shares == expected.rare_shares
    assert_batches_equal(read(tmp_path / "out", converted), read(raw, expected))
    assert summary["rows"] == 240 and len(summary["files"]) == 2
    assert_batches_equal(converted.encode(table(ROWS)), expected.encode(table(ROWS)))


@pytest.mark.parametrize("held", [50, 1000])
def test_a_large_row_group_converts_piece_by_piece_to_the_same(raw, tmp_path, monkeypatch, held):
    monkeypatch.setattr(convert, "HELD_ROWS", held)
    rows = pa.concat_tables(table(make_rows(seed)) for seed in range(4))
    path = str(tmp_path / "one.parquet")
    pq.write_table(rows, path)
    convert_files(path, tmp_path / "out", min_count=2, workers=2)
    encoder = Encoder.fit(path, min_count=2)
    assert Encoder.fit(tmp_path / "out").fingerprint == encoder.fingerprint
    assert_batches_equal(read(tmp_path / "out", encoder), read(path, encoder))


def test_bad_rows_are_left_out_with_their_numbers(tmp_path):
    values = {name: list(column) for name, column in make_rows(0).items()}
    for row in (25, 33, 41):
        values["label"][row] = None
    path = tmp_path / "one.parquet"
    pq.write_table(table(values), path)
    with pytest.raises(DataError, match="row group 0, row 25, column label"):
        convert_files(path, tmp_path / "strict")
    summary = convert_files(path, tmp_path / "out", bad_rows="quarantine", min_count=2)
    assert summary["rows"] == 57
    lines = (tmp_path / "out" / "_quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"] for line in lines] == [25, 33, 41]
    assert_converted(tmp_path / "out", without((25, 33, 41), make_rows(0)))


@pytest.mark.parametrize("make", [m for m in LAYOUTS.values()][:10])
def test_every_layout_converts_to_the_same_ids(make, tmp_path):
    path = write(tmp_path / "raw.parquet", make(ROWS))
    convert_files(path, tmp_path / "out", min_count=2)
    assert_converted(tmp_path / "out", table(ROWS))


def test_text_converts_as_parquet_does(tmp_path):
    convert_files(text_file(tmp_path / "raw.tsv"), tmp_path / "out", min_count=2)
    assert_converted(tmp_path / "out", table(ROWS))


def test_encoded_data_keep_their_ids(tmp_path):
    path = write(tmp_path / "raw.parquet", encoded_table())
    convert_files(path, tmp_path / "out")
    encoder = Encoder.fit(tmp_path / "out")
    assert_batches_equal(read(tmp_path / "out", encoder), encoder.encode(encoded_table()))


def test_other_rows_are_converted_by_the_encoder_of_the_first(raw, tmp_path):
    convert_files(raw, tmp_path / "train", min_count=2)
    encoder = Encoder.fit(tmp_path / "train")
    other = write(tmp_path / "other.parquet", table(make_rows(9)))
    convert_files(other, tmp_path / "valid", encoder=tmp_path / "train")
    assert_batches_equal(read(tmp_path / "valid", encoder), read(other, encoder))
    own = Encoder.fit(other)
    with pytest.raises(DataError, match="converted with a different encoder than this one"):
        Dataset(tmp_path / "valid", own)


class Killed(BaseException):
    """Ends a run at once, as far as a process can do that to itself."""


def kill_while(passed):
    """Return a callback of progress that ends the run in the pass of this name."""

    def progress(what, rows, done):
        if what == passed:
            raise Killed

    return progress


def same_folders(left, right):
    names = sorted(os.listdir(left))
    assert names == sorted(os.listdir(right))
    return all(filecmp.cmp(left / name, right / name, shallow=False) for name in names)


def steps_of_progress(patch, convert, stop):
    """End a conversion at step `stop` of its progress; whether it came so far."""
    steps = iter(range(1, 1_000))

    def progress(what, rows, done):
        if next(steps) == stop:
            raise Killed

    return was_killed(lambda: convert(progress=progress))


def files_written(patch, convert, stop, *, after):
    """End a conversion where it gives its file `stop` its name, or has done so."""
    replace, files = os.replace, iter(range(1, 1_000))

    def killing(*names):
        is_last = next(files) == stop
        if after or not is_last:
            replace(*names)
        if is_last:
            raise Killed

    patch.setattr(os, "replace", killing)
    return was_killed(convert)


def was_killed(convert):
    try:
        convert()
    except Killed:
        return True
    return False


KILLS = {
    "at a step": (steps_of_progress, 13),
    "before a file": (partial(files_written, after=False), 9),
    "after a file": (partial(files_written, after=True), 9),
}


@pytest.mark.parametrize(("kill", "least"), KILLS.values(), ids=KILLS)
def test_a_conversion_killed_anywhere_goes_on_to_the_same_bytes(raw, tmp_path, kill, least):
    convert = partial(convert_files, raw, min_count=2, bad_rows="quarantine", workers=2)
    whole, out = convert(tmp_path / "whole"), tmp_path / "cut"
    for stop in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            if not kill(patch, partial(convert, out), stop):
                break
        if (out / "_work" / "dataset.json").exists() > (out / "dataset.json").exists():
            (out / ".part-00000.parquet.1.tmp").touch()
        assert convert(out) == whole and same_folders(tmp_path / "whole", out)
        shutil.rmtree(out)
    assert stop > least


def test_the_encoder_and_finished_files_are_made_once(raw, tmp_path):
    out, told = tmp_path / "out", []
    with pytest.raises(Killed):
        convert_files(raw, out, progress=kill_while("writing"))
    kept = {name: os.stat(out / name) for name in ("part-00000.parquet", "_encoder.parquet")}
    assert not (out / "part-00001.parquet").exists()
    summary = convert_files(raw, out, progress=lambda *step: told.append(step))
    rows = [entry["rows"] for entry in summary["files"]]
    assert told == [("writing", 0, rows[0] / 240), ("writing", rows[1], 1.0)]
    assert all(os.path.samestat(stat, os.stat(out / name)) for name, stat in kept.items())


def test_finished_files_are_kept_where_the_disk_is_full(raw, tmp_path, monkeypatch):
    convert_files(raw, tmp_path / "whole")
    writes, write_one = iter(range(9)), convert._write

    def full(*arguments):
        if next(writes):
            raise ResourceError("no space left")
        return write_one(*arguments)

    with monkeypatch.context() as patch, pytest.raises(ResourceError, match="files are kept in"):
        patch.setattr(convert, "_write", full)
        convert_files(raw, tmp_path / "cut")
    assert (tmp_path / "cut" / "part-00000.parquet").is_file()
    convert_files(raw, tmp_path / "cut")
    assert same_folders(tmp_path / "whole", tmp_path / "cut")


def cut_short(path):
    os.truncate(path, path.stat().st_size - 1)


LOSSES = {
    "a file": ("part-00000.parquet", Path.unlink),
    "the end of a file": ("part-00000.parquet", cut_short),
    "the encoder": ("_encoder.parquet", Path.unlink),
}


@pytest.mark.parametrize(("name", "lose"), LOSSES.values(), ids=LOSSES)
def test_an_unfinished_conversion_that_lacks_something_begins_anew(raw, tmp_path, name, lose):
    convert_files(raw, tmp_path / "whole")
    with pytest.raises(Killed):
        convert_files(raw, tmp_path / "cut", progress=kill_while("writing"))
    lose(tmp_path / "cut" / name)
    convert_files(raw, tmp_path / "cut")
    assert same_folders(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(("name", "lose"), LOSSES.values(), ids=LOSSES)
def test_the_repair_of_a_finished_conversion_resumes_too(raw, tmp_path, name, lose):
    whole, out, told = convert_files(raw, tmp_path / "whole"), tmp_path / "out", []
    convert_files(raw, out)
    lose(out / name)
    with pytest.raises(Killed):
        convert_files(raw, out, progress=kill_while("writing"))
    assert convert_files(raw, out, progress=lambda *step: told.append(step)) == whole
    assert {what for what, _, _ in told} == {"writing"}
    assert same_folders(tmp_path / "whole", out)


def test_a_repair_that_is_refused_leaves_nothing_behind(tmp_path):
    path = text_file(tmp_path / "raw.tsv")
    convert_files(path, tmp_path / "out")
    (tmp_path / "out" / "part-00000.parquet").unlink()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(DataError, match="went away"):
        patch.setattr(convert, "learn", Mock(side_effect=DataError("it went away")))
        convert_files(path, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []


def test_rows_that_change_between_the_passes_are_refused(tmp_path):
    path = text_file(tmp_path / "raw.tsv")

    def cut(what, rows, done):
        if what == "counting values":
            text_file(tmp_path / "raw.tsv", {name: values[:50] for name, values in ROWS.items()})

    with pytest.raises(DataError, match="the input files changed during the conversion"):
        convert_files(path, tmp_path / "out", progress=cut)
    assert os.listdir(tmp_path) == ["raw.tsv"]


def test_a_finished_conversion_is_not_done_again(raw, tmp_path):
    summary = convert_files(raw, tmp_path / "out")
    before = os.stat(tmp_path / "out" / "part-00000.parquet").st_mtime_ns
    assert convert_files(raw, tmp_path / "out") == json.loads(json.dumps(summary))
    assert os.stat(tmp_path / "out" / "part-00000.parquet").st_mtime_ns == before
    with pytest.raises(ConfigError, match="holds another conversion; name another folder"):
        convert_files(raw, tmp_path / "out", min_count=2)


def spoiled():
    rows = {name: list(values) for name, values in ROWS.items()}
    rows["label"][7], rows["label"][50], rows["I2"][20] = 2, "", "x"
    return rows


@pytest.mark.parametrize("rule", ["skip", "quarantine"])
def test_bad_rows_are_left_out_counted_and_named(tmp_path, rule):
    path = text_file(tmp_path / "raw.tsv", spoiled())
    with open(path, "a") as file:
        file.write("1\t2\n")
    with pytest.raises(DataError, match="line 62: 2 fields, expected 8"):
        convert_files(path, tmp_path / "strict")
    summary = convert_files(path, tmp_path / "out", bad_rows=rule, min_count=2)
    assert (summary["rows"], summary["bad_rows"]) == (57, 4)
    assert summary["bad_rows_by_column"] == {"I2": 1, "fields": 1, "label": 2}
    assert any("line 9, column label: the label is 2" in e for e in summary["bad_row_examples"])
    assert_converted(tmp_path / "out", without((7, 50, 20)))
    notes = tmp_path / "out" / "_quarantine.jsonl"
    assert notes.exists() == (rule == "quarantine")
    if notes.exists():
        lines = [json.loads(line) for line in notes.read_text().splitlines()]
        assert sorted(line["line"] for line in lines) == [9, 22, 52, 62]
        assert next(line["text"] for line in lines if line["line"] == 62) == "1\t2"


def test_data_refused_at_their_first_row_leave_nothing_behind(tmp_path):
    path = write(tmp_path / "raw.parquet", table(ROWS | {"label": [7] * 60}))
    with pytest.raises(DataError, match="the label is 7; it must be 0 or 1$"):
        convert_files(path, tmp_path / "new" / "out")
    (tmp_path / "own").mkdir()
    with pytest.raises(DataError, match="the label is 7; it must be 0 or 1$"):
        convert_files(path, tmp_path / "own")
    assert sorted(os.listdir(tmp_path)) == ["own", "raw.parquet"]
    assert os.listdir(tmp_path / "own") == []


def test_data_refused_at_a_late_row_leave_nothing_behind(tmp_path):
    rows = table(ROWS)
    bad = rows.slice(59).set_column(0, "label", pa.array([9], rows.schema.field("label").type))
    path = write(tmp_path / "raw.parquet", pa.concat_tables([rows.slice(0, 59), bad]))
    with pytest.raises(DataError, match="row 59, column label: the label is 9"):
        convert_files(path, tmp_path / "out")
    assert convert_files(path, tmp_path / "out", bad_rows="skip")["rows"] == 59


def test_a_file_of_bad_rows_is_not_skipped_silently(tmp_path):
    path = write(tmp_path / "raw.parquet", table(ROWS | {"label": [7] * 60}))
    with pytest.raises(DataError, match="more than half of 16 rows are bad"):
        convert_files(path, tmp_path / "out", bad_rows="skip")


def test_what_fitting_refuses_to_guess_conversion_refuses_too(tmp_path):
    columns = {"label": [0.0, 1.0], "I1": [4.0, 900.0], "C1": [3, 5]}
    path = write(tmp_path / "raw.parquet", pa.table(columns))
    for run in (Encoder.fit, lambda data, **given: convert_files(data, tmp_path / "out", **given)):
        with pytest.raises(DataError, match="floats but hold whole numbers up to 900"):
            run(path)
        with pytest.raises(ConfigError, match="max_rows is for raw data"):
            run(path, max_rows=8)
    assert os.listdir(tmp_path) == ["raw.parquet"]
    assert convert_files(path, tmp_path / "out", treat_as="encoded")["rows"] == 2


def test_values_that_would_not_fit_are_refused_with_the_column(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(learn, "_VALUE", 1 << 26)
    with pytest.raises(ResourceError, match=r"most of them in C\d; give more memory or a higher"):
        convert_files(raw, tmp_path / "out", **SMALL)


def test_an_encoder_that_would_not_fit_is_refused_before_anything_is_read(
    raw, tmp_path, monkeypatch
):
    convert_files(raw, tmp_path / "train", min_count=2)
    monkeypatch.setattr(learn, "_VALUE", 1 << 26)
    with pytest.raises(ResourceError, match=r"of the encoder need .* in C\d; give more memory"):
        convert_files(raw, tmp_path / "out", encoder=tmp_path / "train", **SMALL)
    assert not (tmp_path / "out").exists()


def test_an_encoder_that_would_not_fit_any_more_is_refused_and_files_are_kept(
    raw, tmp_path, monkeypatch
):
    with pytest.raises(Killed):
        convert_files(raw, tmp_path / "out", progress=kill_while("writing"))
    monkeypatch.setattr(learn, "_VALUE", 1 << 26)
    with pytest.raises(ResourceError, match=r"give more memory .* files are kept in"):
        convert_files(raw, tmp_path / "out", **SMALL)
    assert (tmp_path / "out" / "part-00000.parquet").is_file()


@pytest.mark.parametrize("passed", ["reading", "writing"])
def test_other_settings_or_files_are_refused_in_an_unfinished_conversion(raw, tmp_path, passed):
    with pytest.raises(Killed):
        convert_files(raw, tmp_path / "out", progress=kill_while(passed))
    for change in ({"min_count": 3}, {"bad_rows": "skip"}, {}):
        if not change:
            os.utime(tmp_path / "raw2.parquet", (1, 1))
        with pytest.raises(
            ConfigError, match="unfinished conversion of different files or settings"
        ):
            convert_files(raw, tmp_path / "out", **change)
    assert (tmp_path / "out" / "_work" / "dataset.json").is_file()


def test_a_file_that_is_not_there_is_named_and_leaves_nothing_behind(raw, tmp_path):
    with pytest.raises(DataError, match=r"none\.parquet: no such file"):
        convert_files([raw, tmp_path / "none.parquet"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rule", ["error", "skip"])
def test_text_without_a_row_leaves_nothing_behind(tmp_path, rule):
    path = tmp_path / "raw.csv"
    path.write_text("label,I1,C1\n")
    with pytest.raises(DataError, match=r"raw\.csv: no good row in it$"):
        convert_files(path, tmp_path / "out", bad_rows=rule)
    assert os.listdir(tmp_path) == ["raw.csv"]


@pytest.mark.parametrize("inside", ["", "out", "deep/out"])
def test_a_result_does_not_lie_among_what_is_read(raw, tmp_path, inside):
    with pytest.raises(ConfigError, match="is inside the input folder .*; name another"):
        convert_files(tmp_path, tmp_path / inside)
    assert all(name.startswith("raw") for name in os.listdir(tmp_path))


@pytest.mark.parametrize("name", ["dataset.json", "_work/dataset.json"])
def test_damaged_notes_of_a_conversion_are_one_line(raw, tmp_path, name):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(DataError, match=f"{name}: damaged; remove its folder"):
        convert_files(raw, tmp_path / "out")


OTHERS = {"min_count": 3, "max_rows": 9, "dense_fill": 1.0, "missing_flags": True, "nan": "missing"}


@pytest.mark.parametrize("name, value", OTHERS.items(), ids=OTHERS.keys())
def test_converted_data_are_not_fitted_with_other_settings(raw, tmp_path, name, value):
    convert_files(raw, tmp_path / "out", min_count=2)
    with pytest.raises(ConfigError, match=f"{name} is .*, but the data are converted with"):
        Encoder.fit(tmp_path / "out", **{name: value})
    assert Encoder.fit(tmp_path / "out", min_count=2).settings.min_count == 2


REFUSED = {
    "too little memory": ({"memory": 1000}, "memory is 1,000 bytes; it must be"),
    "an unknown rule": ({"bad_rows": "drop"}, "bad_rows is 'drop'; it must be one of error, skip"),
    "no workers": ({"workers": 0}, "workers is 0; it must be 1 or more"),
}


@pytest.mark.parametrize("options, message", REFUSED.values(), ids=REFUSED.keys())
def test_an_argument_is_refused_before_anything_is_written(raw, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        convert_files(raw, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


CLASHING = {
    "a category called label": ({"categories": ["label", "b"]}, "'label' is a feature here, and"),
    "a dense column called label": ({"dense": ["label"]}, "'label' is a feature here, and"),
    "a category called as flags": ({"categories": ["p_missing"]}, "two columns 'p_missing'"),
}


@pytest.mark.parametrize("names, message", CLASHING.values(), ids=CLASHING.keys())
def test_features_that_converted_data_could_not_tell_apart_are_refused_before(
    tmp_path, names, message
):
    schema = Schema(**{"label": "click", "dense": ["p"], "categories": ["b"], **names})
    raw = str(tmp_path / "raw.parquet")
    pq.write_table(pa.table({name: [0, 1] for name in sorted(schema.wanted)}), raw)
    with pytest.raises(ConfigError, match=message):
        convert_files(raw, tmp_path / "out", schema=schema, missing_flags=True)
    assert not (tmp_path / "out").exists()


def test_a_feature_may_be_called_like_the_label_in_other_letters(tmp_path):
    raw, out = str(tmp_path / "raw.parquet"), str(tmp_path / "out")
    schema = Schema(label="click", dense=["Label"], categories=["LABEL"])
    columns = {"click": [0, 1, 1], "Label": [1.0, 2.0, 3.0], "LABEL": [5, 6, 5]}
    pq.write_table(pa.table(columns), raw)
    convert_files(raw, tmp_path / "out", schema=schema)
    (batch,) = Dataset(out, Encoder.fit(out)).batches(3)
    assert batch.labels.tolist() == [0, 1, 1]


def test_a_folder_with_something_else_is_left_alone(raw, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(ConfigError, match="is not empty; name another folder"):
        convert_files(raw, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["mine"]


@pytest.mark.parametrize("name", ["part-00000.parquet", "_encoder.parquet"])
def test_no_flipped_bit_is_silent(raw, tmp_path, name):
    convert_files(raw, tmp_path / "out", min_count=2)
    folder, path = tmp_path / "out", tmp_path / "out" / name

    def all_values():
        encoder = Encoder.fit(folder)
        batch = read(folder, encoder)
        return [batch.dense, batch.ids, batch.labels, np.array(encoder.rows)]

    expected, data, chance = all_values(), path.read_bytes(), random.Random(0)
    for _ in range(60):
        bit = chance.randrange(8 * len(data))
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found = all_values()
        except SparsetrainError as error:
            assert "\n" not in str(error)
            continue
        for left, right in zip(found, expected, strict=True):
            np.testing.assert_array_equal(left, right)


TEXTS = ["12345678", "6fd1e6a4", "site", "-5", "7", "012", "true", ""]


@pytest.mark.parametrize("texts", [TEXTS, [text for text in TEXTS if text != "6fd1e6a4"]])
def test_counts_of_chunks_add_up_to_those_of_all(tmp_path, texts):
    rng = np.random.default_rng(0)
    values = [texts[i] for i in rng.zipf(1.5, 240) % len(texts)]
    columns = ROWS | {"C1": values[:60]}
    for part in range(4):
        write(tmp_path / f"raw{part}.parquet", table(columns | {"C1": values[60 * part :][:60]}))
    raw = str(tmp_path / "raw*.parquet")
    summary = convert_files(raw, tmp_path / "out", min_count=3)
    assert Encoder.fit(tmp_path / "out").fingerprint == Encoder.fit(raw, min_count=3).fingerprint
    assert summary["categories"]["C1"]["distinct"] == len({*values} - {""})


def test_a_conversion_knows_which_share_of_the_values_was_rare(raw, tmp_path):
    convert_files(raw, tmp_path / "out", min_count=12)
    shares = Encoder.fit(tmp_path / "out").rare_shares
    assert shares == Encoder.fit(raw, min_count=12).rare_shares
    assert any(0 < share < 1 for share in shares)


def test_converted_files_have_checksums_and_name_their_encoder(raw, tmp_path):
    convert_files(raw, tmp_path / "out")
    metadata = pq.read_schema(tmp_path / "out" / "part-00000.parquet").metadata
    fingerprint = Encoder.fit(tmp_path / "out").fingerprint
    assert metadata[b"sparsetrain.converted"].decode() == fingerprint


def test_converted_columns_are_stored_to_be_read_fast(tmp_path):
    convert_files(write(tmp_path / "rows.parquet", table(ROWS)), tmp_path / "out", min_count=2)
    (path,) = (tmp_path / "out").glob("part-*.parquet")
    with pq.ParquetFile(path) as file:
        assert not any(field.nullable for field in file.schema_arrow)
        group = file.metadata.row_group(0)
        columns = [group.column(number) for number in range(group.num_columns)]
    assert {column.compression for column in columns} == {"LZ4"}


@pytest.mark.parametrize("bags", [False, True])
def test_ids_of_large_tables_are_split_by_bytes_and_others_have_a_dictionary(tmp_path, bags):
    many, few = np.arange(2000) % 400, np.arange(2000) % 9
    rows = {"click": few % 2, "many": [[n] for n in many] if bags else many, "few": few}
    pq.write_table(pa.table(rows), tmp_path / "raw.parquet")
    schema = Schema(label="click", dense=[], categories=["many", "few"])
    out = tmp_path / "out"
    convert_files(tmp_path / "raw.parquet", out, schema=schema)
    (file,) = out.glob("part-*.parquet")
    group = pq.ParquetFile(file).metadata.row_group(0)
    found = {(c := group.column(i)).path_in_schema.split(".")[0]: c.encodings for i in range(3)}
    are_split = {name: "BYTE_STREAM_SPLIT" in encodings for name, encodings in found.items()}
    have_dictionary = {name: "RLE_DICTIONARY" in encodings for name, encodings in found.items()}
    assert are_split == {"label": False, "many": True, "few": False}
    assert have_dictionary == {"label": True, "many": False, "few": True}


@pytest.mark.parametrize("rest", ["parquet", "text"])
def test_files_without_rows_may_come_first(rest, tmp_path):
    rows = table(make_rows())
    write(tmp_path / "none.parquet", rows.slice(0, 0))
    if rest == "text":
        file = text_file(tmp_path / "raw.tsv")
    else:
        file = write(tmp_path / "raw.parquet", rows)
    none, out = str(tmp_path / "none.parquet"), tmp_path / "out"
    expected = convert_files(file, tmp_path / "expected", min_count=1, **SMALL)
    assert convert_files([none, none, file], out, min_count=1, **SMALL)["rows"] == expected["rows"]
    with pytest.raises(DataError, match=r"none\.parquet and 1 more: no rows$"):
        convert_files([none, none], tmp_path / "nothing", min_count=1, **SMALL)
