# SPDX-License-Identifier: Apache-2.0
"""`convert`, `inspect`, `generate` and warnings about unseen categories, over the real library."""

import gzip
import json
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain.cli import main
from sparsetrain.cli.convert import PassProgress, parse_size
from sparsetrain.cli.plot import write_plot
from sparsetrain.cli.predict import _concatenate, as_text
from sparsetrain.cli.settings import resolve_settings
from sparsetrain.data import convert_files
from sparsetrain.data.synthetic import SyntheticCriteo
from sparsetrain.errors import ConfigError, DataError
from tests.helpers import slow_except

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


def test_how_many_files_of_a_folder_are_trained_on_is_said(raw, tmp_path, capsys):
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pq.read_table(raw).slice(0, 100), tmp_path / name)
    (tmp_path / "c.csv").write_text("not read beside parquet")
    assert main(["train", str(tmp_path), *SMALL]) == 0
    assert f"learning the encoding from {tmp_path} (2 files)" in capsys.readouterr().err


def test_training_on_converted_rows_is_training_on_raw_ones(raw, converted, tmp_path, capsys):
    folder, _ = converted
    scores = []
    for data in (raw, folder):
        arguments = ["train", str(data), "--test", str(raw), "--json", *SMALL]
        assert main([*arguments, "--set", "train.shuffle=false"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["test"])
    assert scores[0] == scores[1]


def test_the_encoding_of_converted_rows_is_not_learnt_anew(converted, capsys):
    folder, _ = converted
    assert main(["train", str(folder), "--model", "lr"]) == 0
    assert f"sparsetrain: taking the encoding from {folder} (1 file)" in capsys.readouterr().err


def test_evaluate_names_the_command_for_rows_without_labels(raw, tmp_path, capsys):
    rows, run = tmp_path / "rows.parquet", tmp_path / "run"
    pq.write_table(pq.read_table(raw).drop(["label"]), rows)
    assert main(["train", str(raw), "--model", "lr", "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run), str(rows)]) == 3
    said = f"; rows without labels: sparsetrain predict {run} {rows} --out FILE\n"
    assert said in capsys.readouterr().err
    keep = ["--keep", "label", "--keep", "C1", "--keep", "day"]
    assert main(["predict", str(run), str(rows), "--out", str(tmp_path / "p.csv"), *keep]) == 3
    assert "no column label, day, which --keep names" in capsys.readouterr().err


def test_inspect_shows_data_and_encoder(raw, converted, capsys):
    folder, _ = converted
    assert main(["inspect", str(raw), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["kind"], result["rows"], len(result["categories"])) == ("data", 3_000, 26)
    assert main(["inspect", str(folder)]) == 0
    assert "converted: 26 dense, 26 ids" in capsys.readouterr().out
    assert main(["inspect", str(folder), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {column["missing"] for column in result["dense"]} == {None}
    for column in result["categories"]:
        known = result["dataset"]["categories"][column["column"]]
        assert {key: column[key] for key in ("missing", "rare")} == {
            key: known[key] for key in ("missing", "rare")
        }
        assert column["distinct"] == known["rows"] - 2
    assert main(["inspect", str(folder / "_encoder.parquet"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "encoder"


def test_generate_writes_rows_and_says_the_ceiling(tmp_path, capsys):
    out = tmp_path / "deep" / "a.parquet"
    assert main(["generate", str(out), "--rows", "500", "--max-cardinality", "9", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["next_chunk"]) == (500, 1)
    assert 0.7 < result["auc"] < 0.9
    assert pq.read_metadata(out).num_rows == 500


def test_generated_text_holds_the_rows_of_generated_parquet(tmp_path, capsys):
    results = []
    for name in ("a.parquet", "a.tsv"):
        options = ["--rows", "700", "--chunk-rows", "300", "--max-cardinality", "9", "--json"]
        assert main(["generate", str(tmp_path / name), *options]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[0] | {"out": ""} == results[1] | {"out": ""}
    lines = (tmp_path / "a.tsv").read_text().splitlines()
    rows = pq.read_table(tmp_path / "a.parquet").to_pylist()
    for line, row in zip(lines, rows, strict=True):
        assert line == "\t".join("" if v is None else str(v) for v in row.values())


REFUSED = [
    (["convert", "none.tsv", "--out", "OUT"], 3, "none.tsv: no such file"),
    (
        ["convert", "RAW", "--out", "OUT", "--memory", "much"],
        2,
        "--memory much: expected a size such",
    ),
    (["convert", "RAW", "--out", "OUT", "--memory", "1MB"], 2, "memory is 1,000,000 bytes; it"),
    (["convert", "RAW", "--out", "OUT", "--bad-rows", "drop"], 2, "bad_rows is 'drop'; it must"),
    (["convert", "RAW", "--out", "OUT", "--schema", "no.toml"], 2, "no.toml: cannot read the"),
    (
        ["convert", "RAW", "--out", "OUT", "--encoder", "no"],
        4,
        "no: no such file; `convert` writes the encoder",
    ),
    (
        ["train", "RAW", "--valid", ""],
        2,
        "an argument is empty; is a shell variable not set",
    ),
    (["convert", "RAW", "--out", "OUT", "--encoder", "x", "--min-count", "3"], 2, "has its own"),
    (
        ["convert", "RAW", "--out", "OUT", "--encoder", "x", "--set", "data.nan=missing"],
        2,
        "has its own schema",
    ),
    (
        ["train", "RAW", "--set", "train.parts=2", "--set", "optimizer.accumulate=2"],
        2,
        "both cut a batch",
    ),
    (["inspect", "none.parquet"], 3, "none.parquet: no such file"),
    (["plot", "RAW", "--out", "OUT"], 2, "unsupported file type: use .png"),
    (["generate", "OUT"], 2, "use *.parquet or *.tsv"),
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
    with pytest.raises(ConfigError, match="expected a size such as"):
        parse_size(text)


def test_passes_are_shown_by_lines(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("sparsetrain.cli.convert.time.monotonic", lambda: now[0])
    progress = PassProgress(every=0)
    # What an earlier run did counts in no time that is left.
    for what, rows, done, now[0] in (
        *(("reading", 0, 0.3, 1.0), ("reading", 0, 0.5, 2.0), ("reading", 10, 1.0, 4.0)),
        *(("writing", 10, 0.5, 6.0), ("writing", 10, 0.75, 9.0)),
    ):
        progress(what, rows, done)
    shown = capsys.readouterr().err.splitlines()
    assert shown[2:] == [
        "sparsetrain: reading 100%, 10 rows",
        "sparsetrain: writing 50%, 10 rows, 0 s left",
        "sparsetrain: writing 75%, 20 rows, 1 s left",
    ]


def test_passes_over_compressed_text_end_at_all_of_it_once(tmp_path):
    lines = [f"{n % 2},{n % 7},v{n % 5}" for n in range(3_000)]
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress("\n".join(["label,I1,C1", *lines]).encode()))
    shares = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparsetrain.data.read.text_blocks.read_blocks.__defaults__", (4_096,))
        convert_files(path, tmp_path / "out", progress=lambda *told: shares.append(told))
    reading = [done for what, _, done in shares if what == "reading"]
    assert len(reading) > 5 and reading.count(1.0) == 1 and reading == sorted(reading)


@pytest.mark.parametrize("rows", [3_000, 2_999])
def test_inspect_counts_clicks_exactly(raw, tmp_path, capsys, rows):
    path = tmp_path / "some.parquet"
    pq.write_table(pq.read_table(raw).slice(0, rows), path)
    assert main(["inspect", str(path)]) == 0
    clicks = sum(pq.read_table(path)["label"].to_pylist())
    assert f", {clicks / rows:.2%} clicks" in capsys.readouterr().out


def test_inspect_finds_the_label_of_converted_rows_with_their_schema(avazu, tmp_path, capsys):
    assert main(["convert", *avazu, "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out"), "--schema", avazu[2]]) == 0
    assert "50.00% clicks" in capsys.readouterr().out


def test_a_picture_that_cannot_be_drawn_leaves_the_one_before(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"before")

    class Figure:
        def savefig(self, out, dpi):
            out.write_bytes(b"half")
            raise OSError("no space left")

    with pytest.raises(DataError, match=r"a\.png: cannot be written: no space left"):
        write_plot(Figure(), path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


# --- Holding out a part of the training rows -----------------------------------------------------


AVAZU = """label = "click"
categories = ["site", "hour_of_day"]
time = "hour"
[derived.hour_of_day]
from = "hour"
modulo = 100
"""


@pytest.fixture
def avazu(tmp_path):
    (tmp_path / "avazu.toml").write_text(AVAZU)
    lines = [f"{n % 2},{14102100 + n // 20},site{n % 5}" for n in range(400)]
    (tmp_path / "avazu.csv").write_text("\n".join(["click,hour,site", *lines]) + "\n")
    return [str(tmp_path / "avazu.csv"), "--schema", str(tmp_path / "avazu.toml")]


def test_a_missing_label_is_found_before_anything_is_learnt(avazu, raw, tmp_path, capsys):
    text = (tmp_path / "avazu.toml").read_text()
    (tmp_path / "avazu.toml").write_text(text.replace("click", "clicked"))
    for arguments in (avazu, [str(raw), "--test", str(tmp_path / "unlabelled.parquet")]):
        pq.write_table(pq.read_table(raw).drop_columns(["label"]), tmp_path / "unlabelled.parquet")
        assert main(["train", *arguments]) == 3
        printed = capsys.readouterr().err
        assert "the label column is missing" in printed
        assert printed.count("\n") == 1


def test_a_held_out_file_in_the_training_folder_is_warned_of(raw, tmp_path, capsys):
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in ("train", "valid"):
        pq.write_table(pq.read_table(raw).slice(0, 200), folder / f"{name}.parquet")
    assert main(["train", str(folder), "--valid", str(folder / "valid.parquet"), *SMALL]) == 0
    assert "warning: --valid: " in (printed := capsys.readouterr().err)
    assert "valid.parquet is also a training file" in printed
    only = str(folder / "train.parquet")
    assert main(["train", only, "--valid", str(folder / "valid.parquet"), *SMALL]) == 0
    assert "is also a training file" not in capsys.readouterr().err


def test_rows_without_a_label_are_converted_to_be_scored(raw, converted, tmp_path, capsys):
    path = tmp_path / "unlabelled.parquet"
    pq.write_table(pq.read_table(raw).drop_columns(["label"]), path)
    options = ["--no-label", "--encoder", str(converted[0])]
    assert main(["convert", str(path), "--out", str(tmp_path / "scored"), *options]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("3,000 rows, no label, ")
    assert printed.endswith(f"predict run {tmp_path / 'scored'} --out predictions.parquet\n")


WAYS = {
    "a share": (["--valid-share", "0.25"], range(60, 140)),
    "from an hour on": (["--valid-from", "14102115"], [100]),
    "from an hour of a column on": (["--valid-from", "14102118", "--time-column", "hour"], [40]),
}


@pytest.mark.parametrize("way", slow_except(["a share", "from an hour of a column on"], WAYS))
def test_rows_are_held_out_scored_and_not_trained_on(avazu, tmp_path, capsys, way):
    options, rows = WAYS[way]
    run = str(tmp_path / "run")
    assert main(["train", *avazu, *options, "--out", run, "--json", *SMALL]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["valid"]["rows"] in rows
    assert result["rows"] == 400 - result["valid"]["rows"]
    assert main(["train", "--resume", run, "--epochs", "2", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["valid"]["rows"] == result["valid"]["rows"]
    with open(avazu[0], "a") as file:
        file.write("1,14102100,site1\n")
    assert main(["train", "--resume", run, "--epochs", "3"]) == 4
    assert "avazu.csv" in capsys.readouterr().err


def test_encoded_ids_need_tables_for_the_rows_held_out_too(tmp_path, capsys):
    columns = {"label": [0.0, 1.0] * 50, "I1": [0.5] * 100, "C1": list(range(100))}
    path = tmp_path / "encoded.parquet"
    pq.write_table(pa.table(columns), path)
    assert main(["train", str(path), "--valid-share", "0.5", "--json", *SMALL]) == 0
    assert json.loads(capsys.readouterr().out)["valid"]["rows"] > 20


NO_SPLIT = {
    "two ways": (
        ["--valid-share", "0.1", "--valid-from", "3"],
        2,
        "--valid-from and --valid-share: use one of them",
    ),
    "no share": (["--valid-share", "1.5"], 2, "--valid-share: data.valid_share = 1.5 must be"),
    "no time": (["--valid-from", "never"], 2, "'never' is not a moment"),
    "no column": (["--valid-from", "3", "--time-column", "day"], 3, "column day: the time column"),
    "no rows": (["--valid-from", "3"], 3, "no row has hour < 3"),
    "no use": (["--time-column", "hour"], 2, "needs data.valid_from"),
}


@pytest.mark.parametrize("options, code, message", NO_SPLIT.values(), ids=NO_SPLIT.keys())
def test_a_split_that_cannot_be_is_one_line(avazu, capsys, options, code, message):
    assert main(["train", *avazu, *options]) == code
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_rows_of_another_kind_are_warned_of_when_scored(raw, converted, tmp_path, capsys):
    run, other = tmp_path / "run", tmp_path / "other.parquet"
    assert main(["train", str(converted[0]), "--out", str(run), *SMALL]) == 0
    pq.write_table(SyntheticCriteo(seed=4, max_cardinality=50).chunk(0, rows=500), other)
    for command, *options in (["evaluate"], ["predict", "--out", str(tmp_path / "p.csv")]):
        capsys.readouterr()
        assert main([command, str(run), str(other), *options, "--json"]) == 0
        printed = capsys.readouterr()
        assert (
            "warning: most categories were rare or never seen in training: C1 100%" in printed.err
        )
        result = json.loads(printed.out)
        assert result["unseen_share"] > 0.5 and result["unseen_columns"]["C1"] == 1
        for path, limit in ((raw, []), (other, ["--warn-unseen", "1"])):
            assert main([command, str(run), str(path), *options, *limit, "--json"]) == 0
            printed = capsys.readouterr()
            assert "never seen" not in printed.err
            assert json.loads(printed.out)["unseen_columns"] == {}


def rows_with_a_rare_column(seed, known=200):
    """Of C1 every value is frequent, of C2 `known` of 1000 are; the others occur once."""
    random = np.random.default_rng(seed)
    label, often = random.integers(0, 2, 1000), random.integers(0, 4, 1000).astype(str)
    once = random.integers(10**9, 2 * 10**9, 1000).astype(str)
    columns = {"C1": often, "C2": np.where(np.arange(1000) < known, often, once)}
    return pa.table({"label": label, "I1": random.random(1000), **columns})


def test_rows_as_rare_as_the_training_rows_are_not_warned_of(tmp_path, capsys):
    names = ("train", "alike", "fewer")
    train, alike, fewer = (tmp_path / f"{name}.parquet" for name in names)
    for seed, (path, known) in enumerate({train: 200, alike: 195, fewer: 50}.items()):
        pq.write_table(rows_with_a_rare_column(seed, known), path)
    run = str(tmp_path / "run")
    assert main(["train", str(train), "--out", run, *SMALL]) == 0
    capsys.readouterr()
    for path, warned in {train: {}, alike: {}, fewer: {"C2": 0.95}}.items():
        assert main(["evaluate", run, str(path), "--json"]) == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out)["unseen_columns"] == warned
        assert ("never seen" in printed.err) == bool(warned)
        assert json.loads(printed.out)["unseen_share"] > 0.35


def test_messages_name_what_a_command_takes(tmp_path, capsys):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"label": [1], "I1": [float("nan")], "C1": ["a"]}), path)
    assert main(["train", str(path)]) == 3
    assert "learn the encoding with --set data.nan=missing\n" in capsys.readouterr().err
    assert main(["train", str(path), "--set", "data.nan=missing", *SMALL]) == 0


@pytest.mark.parametrize(
    "text, moment",
    [
        ("14103000", 14103000),
        ("0.5", 0.5),
        ("2014-10-30", "2014-10-30"),
        ("2014-10-30T12:00:00", "2014-10-30T12:00:00"),
        ("2014-10-30 12:00", "2014-10-30 12:00"),
    ],
)
def test_a_moment_is_a_number_or_a_date(text, moment):
    found = resolve_settings(overrides=[f"data.valid_from={text}"]).data.valid_from
    if isinstance(moment, str):  # TOML 1.1 reads a time without seconds, as 12:00:00
        found, moment = map(datetime.fromisoformat, (found, moment))
    assert found == moment


@pytest.mark.parametrize("text", ["true", "12:00:00", "1,2", "inf"])
def test_what_is_no_moment_is_refused_as_a_setting(text):
    with pytest.raises(ConfigError, match="data.valid_from"):
        resolve_settings(overrides=[f"data.valid_from={text}"])


def test_bytes_that_are_no_text_are_kept_as_they_are():
    given = pa.chunked_array([[b"a", b"\xff"]])
    assert as_text(given).equals(given)
    assert as_text(given.slice(0, 1)).to_pylist() == ["a"]


NAMES = pa.chunked_array([["a", None, "b"]])
# How another file may store the same names.
STORED = [
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.large_string()),
]


@pytest.mark.parametrize("type_", STORED, ids=str)
def test_kept_columns_of_files_that_store_them_differently_are_one(type_):
    found = _concatenate("user", [NAMES, NAMES.cast(type_)])
    assert found.type == pa.string()
    assert found.to_pylist() == NAMES.to_pylist() * 2


def test_kept_columns_that_have_no_type_in_common_are_refused():
    with pytest.raises(
        DataError, match="--keep user: the files have different types, int64 and string"
    ):
        _concatenate("user", [NAMES, pa.chunked_array([[1]])])


def test_a_file_trains_and_resumes_by_the_name_of_its_label_alone(tmp_path, capsys):
    rows = {"click": [0, 1] * 200, "site": ["a", "b", "c", "d"] * 100, "cost": [*range(400)]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    data, schema, run = (str(tmp_path / name) for name in ("a.parquet", "my.toml", "run"))
    assert main(["schema", data, "--label", "click", "--dense", "cost"]) == 0
    (tmp_path / "my.toml").write_text(capsys.readouterr().out)
    train = ["train", data, "--label", "click", "--dense", "cost", *SMALL]
    assert main([*train, "--out", run]) == 0
    assert "site: category, text: 4 values" in capsys.readouterr().err
    assert main(["train", "--resume", run, "--epochs", "2"]) == 0
    by_schema = ["train", data, "--schema", schema, "--epochs", "2", *SMALL]
    assert main([*by_schema, "--out", f"{run}2"]) == 0
    one, two = (st.load(folder).state_dict() for folder in (run, f"{run}2"))
    assert all((one[name] == two[name]).all() for name in one)
    capsys.readouterr()
    assert main(["train", data, "--label", "click", "--schema", schema]) == 2
    assert "--label infers a schema, but --schema gives one" in capsys.readouterr().err
