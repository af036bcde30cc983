# SPDX-License-Identifier: Apache-2.0
"""`convert`, `inspect`, `generate` and warnings about unseen categories, over the real library."""

import json

import pyarrow.parquet as pq
import pytest

from sparsetrain.cli import main
from sparsetrain.cli.convert import parse_size
from sparsetrain.cli.passes import PassLines
from sparsetrain.data.synthetic import SyntheticCriteo
from sparsetrain.errors import ConfigError

SMALL = ["--set", "model.dim=4", "--set", "model.bottom=8", "--set", "model.top=8"]


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    path = tmp_path_factory.mktemp("raw") / "raw.parquet"
    pq.write_table(SyntheticCriteo(seed=3, max_cardinality=50).chunk(0, rows=3_000), path)
    return path


@pytest.fixture
def converted(raw, tmp_path, capsys):
    assert main(["convert", str(raw), "--out", str(tmp_path / "train"), "--json"]) == 0
    return tmp_path / "train", json.loads(capsys.readouterr().out)


def test_convert_says_what_there_is(converted):
    folder, result = converted
    assert result["rows"] == 3_000
    assert result["out"] == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "_encoder.parquet",
        "dataset.json",
        "part-00000.parquet",
    ]


def test_convert_prints_a_table_for_people(raw, tmp_path, capsys):
    assert main(["convert", str(raw), "--out", str(tmp_path / "a")]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("3,000 rows, ")
    assert "largest tables" in printed.out
    assert "writing 100%, 3,000 rows" in printed.err


def test_training_on_converted_rows_is_training_on_raw_ones(raw, converted, tmp_path, capsys):
    folder, _ = converted
    scores = []
    for data in (raw, folder):
        arguments = ["train", str(data), "--test", str(raw), "--json", *SMALL]
        assert main([*arguments, "--set", "train.shuffle=false"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["test"])
    assert scores[0] == scores[1]


def test_rows_of_another_kind_are_warned_of_when_scored(raw, converted, tmp_path, capsys):
    folder, _ = converted
    run, out = tmp_path / "run", str(tmp_path / "p.csv")
    assert main(["train", str(folder), "--out", str(run), *SMALL]) == 0
    assert main(["predict", str(run), str(raw), "--out", out, "--json"]) == 0
    printed = capsys.readouterr()
    assert "never seen" not in printed.err
    other = tmp_path / "other.parquet"
    pq.write_table(SyntheticCriteo(seed=4, max_cardinality=50).chunk(0, rows=500), other)
    assert main(["predict", str(run), str(other), "--out", out, "--json"]) == 0
    printed = capsys.readouterr()
    assert "warning: most categories were rare or never seen in training: C1 100%" in printed.err
    result = json.loads(printed.out)
    assert result["unseen_share"] > 0.5
    assert result["unseen_columns"]["C1"] == 1
    assert main(["inspect", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "model"


def test_inspect_shows_data_encoder_and_picture(raw, converted, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder, _ = converted
    picture = tmp_path / "new" / "a.png"
    assert main(["inspect", str(raw), "--plot", str(picture), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["kind"], result["rows"], len(result["categories"])) == ("data", 3_000, 26)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["inspect", str(folder)]) == 0
    assert "converted: 13 dense, 26 ids" in capsys.readouterr().out
    assert main(["inspect", str(folder / "_encoder.parquet"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "encoder"


def test_generate_writes_rows_and_says_the_ceiling(tmp_path, capsys):
    out = tmp_path / "deep" / "a.parquet"
    assert main(["generate", str(out), "--rows", "500", "--max-cardinality", "9", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["next_chunk"]) == (500, 1)
    assert 0.7 < result["auc"] < 0.9
    assert pq.read_metadata(out).num_rows == 500


REFUSED = [
    (["convert", "none.tsv", "--out", "OUT"], 3, "none.tsv: no such file"),
    (["convert", "RAW", "--out", "OUT", "--memory", "much"], 2, "--memory much: give a size such"),
    (["convert", "RAW", "--out", "OUT", "--memory", "1MB"], 2, "memory is 1,000,000 bytes; it"),
    (["convert", "RAW", "--out", "OUT", "--bad-rows", "drop"], 2, "bad_rows is 'drop'; it must"),
    (["convert", "RAW", "--out", "OUT", "--schema", "no.toml"], 2, "no.toml: cannot read the"),
    (["convert", "RAW", "--out", "OUT", "--encoder", "no"], 4, "not a whole encoder file"),
    (["convert", "RAW", "--out", "OUT", "--encoder", "x", "--min-count", "3"], 2, "brings its own"),
    (["inspect", "none.parquet"], 3, "none.parquet: no such file"),
    (["inspect", "RAW", "--plot", "OUT"], 2, "a picture ends in .png"),
    (["generate", "OUT"], 2, "the file is parquet; name it *.parquet"),
    (["generate", "OUT.parquet", "--bayes-auc", "0.1"], 2, "bayes_auc must be between"),
]


@pytest.mark.parametrize("arguments, code, message", REFUSED, ids=lambda v: str(v)[:40])
def test_a_mistake_is_one_line_and_writes_nothing(
    raw, tmp_path, capsys, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    given = [a.replace("RAW", str(raw)).replace("OUT", str(tmp_path / "out")) for a in arguments]
    assert main(given) == code
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text, size", [("1.5GB", 1_500_000_000), ("2GiB", 2**31), ("7", 7)])
def test_sizes_are_decimal_or_binary(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="give a size such as"):
        parse_size(text)


def test_passes_are_shown_by_lines(capsys):
    with PassLines(every=0) as lines:
        lines("reading", 10, 0.5)
        lines("reading", 10, 1.0)
        lines("writing", 20, 1.0)
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith("sparsetrain: reading 50%, 10 rows, ")
    assert shown[0].endswith(" left")
    assert shown[1].startswith("sparsetrain: reading 100%, 20 rows, ")
    assert shown[2].startswith("sparsetrain: writing 100%, 20 rows, ")
