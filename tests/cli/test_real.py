# SPDX-License-Identifier: Apache-2.0
"""The commands over the real library: train, evaluate and predict agree; bad files are refused."""

import contextlib
import io
import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from sparsetrain.cli import main
from sparsetrain.data.synthetic import SyntheticCriteo

SMALL = ["--set", "model.dim=4", "--set", "model.bottom=8", "--set", "model.top=8"]


@pytest.fixture(scope="module")
def tables():
    generator = SyntheticCriteo(seed=3, max_cardinality=50, bayes_auc=0.95)
    return {"train": generator.chunk(0, rows=4_000), "test": generator.chunk(1, rows=1_000)}


@pytest.fixture(scope="module")
def files(tables, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


@pytest.fixture(scope="module")
def run(files, tmp_path_factory):
    """Train once for all tests; returns the folder of the model and the JSON result."""
    out = tmp_path_factory.mktemp("runs") / "model"
    command = ["train", str(files / "train.parquet"), "--valid", str(files / "test.parquet")]
    options = ["--test", str(files / "test.parquet"), "--out", str(out), "--epochs", "2", "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        assert main([*command, *options, *SMALL]) == 0
    return out, json.loads(stdout.getvalue())


def test_training_beats_the_constant(run):
    _, result = run
    assert result["rows"] == 8_000
    assert result["test"]["auc"] > 0.7
    assert result["test"]["logloss"] < result["constant_logloss"]
    assert result["valid"] == result["test"]


def test_evaluate_repeats_the_scores_of_training(run, files, capsys):
    model, result = run
    assert main(["evaluate", str(model), str(files / "test.parquet"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert {name: scores[name] for name in result["test"]} == result["test"]


def test_predict_needs_no_label_and_keeps_the_order(run, files, tables, tmp_path, capsys):
    model, result = run
    unlabelled = tmp_path / "rows.parquet"
    pq.write_table(tables["test"].drop_columns(["label"]).slice(0, 700), unlabelled)
    out = tmp_path / "out.parquet"
    assert main(["predict", str(model), str(unlabelled), "--out", str(out)]) == 0
    assert "700 probabilities" in capsys.readouterr().out
    probability = pq.read_table(out)["probability"].to_numpy()
    assert probability.dtype == np.float32
    labels = tables["test"]["label"].to_numpy()[:700]
    assert probability[labels == 1].mean() > probability[labels == 0].mean()


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_predict_keeps_columns_beside_the_probabilities(run, tables, suffix, tmp_path, capsys):
    model, _ = run
    rows = tables["test"].slice(0, 300)
    rows = rows.append_column("user", pa.array([f"user {number}" for number in range(300)]))
    source, out = tmp_path / f"rows.{suffix}", tmp_path / f"out.{suffix}"
    pq.write_table(rows, source) if suffix == "parquet" else csv.write_csv(rows, source)
    keep = ["--keep", "user", "--keep", "label"]
    assert main(["predict", str(model), str(source), "--out", str(out), *keep]) == 0
    found = pq.read_table(out) if suffix == "parquet" else csv.read_csv(out)
    assert found.column_names == ["user", "label", "probability"]
    assert found["user"].to_pylist() == rows["user"].to_pylist()
    assert found["label"].to_pylist() == rows["label"].to_pylist()
    capsys.readouterr()
    assert main(["predict", str(model), str(source), "--out", str(out), "--keep", "usr"]) == 3
    assert "no column usr, which --keep names" in capsys.readouterr().err


def test_a_quantized_model_is_smaller_and_scores_nearly_the_same(run, files, tmp_path, capsys):
    model, result = run
    small = str(tmp_path / "small")
    assert main(["quantize", str(model), "--out", small, "--json"]) == 0
    size = json.loads(capsys.readouterr().out)
    assert size["table_bytes"] * 16 == size["table_bytes_before"] * 12  # 4 numbers and 8 bytes
    assert main(["evaluate", small, str(files / "test.parquet"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["auc"] == pytest.approx(result["test"]["auc"], abs=0.002)
    assert main(["inspect", small]) == 0
    assert "tables in uint8; for prediction only" in capsys.readouterr().out
    for again in (["quantize", small, "--out", small + "er"], ["train", "--resume", small]):
        assert main(again) == 4
        assert capsys.readouterr().err.count("\n") == 1


def column(table, name, values):
    return table.set_column(table.schema.get_field_index(name), name, values)


def at_row(table, name, row, value, dtype):
    values = table[name].cast(dtype).to_pylist()
    values[row] = value
    return column(table, name, pa.array(values, dtype))


# What -> of the rows to train on or to test on, the table or the file, what the message says.
BAD = {
    "null label": (
        "train",
        lambda t: at_row(t, "label", 33, None, pa.int32()),
        "row 33, column label",
    ),
    "label 2": ("test", lambda t: at_row(t, "label", 33, 2, pa.int32()), "row 33, column label"),
    "NaN": ("test", lambda t: at_row(t, "I3", 33, float("nan"), pa.float64()), "row 33, column I3"),
    "missing column": ("train", lambda t: t.drop_columns(["C9"]), "C9"),
    "no rows": ("test", lambda t: t.slice(0, 0), "no rows"),
    "truncated": ("train", lambda data: data[: len(data) // 2], "truncated"),
    "empty": ("test", lambda data: b"", "empty"),
    "text": ("train", lambda data: b"label,I1\n0,1\n", "not a parquet file"),
    "folder": ("train", None, ""),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_and_files_are_refused_in_one_line(capsys, tmp_path, files, tables, name):
    part, damage, said = BAD[name]
    bad, out = tmp_path / "bad.parquet", tmp_path / "run"
    if damage is None:
        bad.mkdir()
    elif name in ("truncated", "empty", "text"):
        bad.write_bytes(damage((files / f"{part}.parquet").read_bytes()))
    else:
        pq.write_table(damage(tables[part]), bad)
    paths = {each: str(files / f"{each}.parquet") for each in tables} | {part: str(bad)}
    command = ["train", paths["train"], "--test", paths["test"], "--out", str(out), *SMALL]
    assert main([*command, "--json"]) == 3
    printed = capsys.readouterr()
    last = printed.err.splitlines()[-1]
    assert last.startswith(f"sparsetrain: error: {bad}: ")
    assert said in last
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert not out.exists()


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_folder_that_is_no_model_is_refused(capsys, tmp_path, files, command):
    out = ["--out", str(tmp_path / "p.csv")] if command == "predict" else []
    assert main([command, str(tmp_path), str(files / "test.parquet"), *out]) == 4
    printed = capsys.readouterr().err
    assert printed.startswith(f"sparsetrain: error: {tmp_path}")
    assert printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("holds", "command", "said"),
    [
        ("LATEST", "serve {}", "{} is a trained model: sparsetrain export {} --out SERVED, then"),
        ("LATEST", "apply {} delta --out new", "{} is a trained model: sparsetrain export {}"),
        ("manifest.json", "serve {}", "{} is a trained model: sparsetrain export {} --out"),
        (
            "manifest.txt",
            "evaluate {} rows",
            "{} is an export: serve it with sparsetrain ",
        ),
        (
            "manifest.txt",
            "export {} --out new",
            "{} is an export: serve it with sparsetrain ",
        ),
    ],
)
def test_a_model_of_the_other_kind_is_told_its_own_command(holds, command, said, tmp_path, capsys):
    (tmp_path / holds).touch()
    assert main(command.replace("{}", str(tmp_path)).split()) == 4
    assert said.replace("{}", str(tmp_path)) in capsys.readouterr().err


def test_the_demo_shows_floor_result_and_ceiling(capsys):
    assert main(["demo", "--rows", "3000", "--held-out", "1000", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ceiling"]["auc"] > result["test"]["auc"] > 0.5
    assert result["ceiling"]["logloss"] < result["test"]["logloss"]
    assert result["verdict"]


def test_doctor_names_versions_target_and_cuda(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["packages"]["apache-tvm"].startswith("0.27")
    assert found["target"].startswith("llvm")
    assert found["cuda"].startswith("no: ") or "which 'auto' takes; bfloat16" in found["cuda"]


def test_doctor_reports_the_rest_where_tvm_does_not_load(capsys):
    script = (
        "import sys; sys.modules['tvm'] = None; from sparsetrain.cli import main; "
        "sys.exit(main(['doctor', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, found["ok"]) == (6, False)
    assert found["cuda"].startswith("broken: ModuleNotFoundError") and found["python"]


@pytest.mark.parametrize("place, said", [("", "SPARSETRAIN_CACHE is empty"), ("kept", "0 files")])
def test_doctor_says_where_compiled_programs_are(monkeypatch, tmp_path, capsys, place, said):
    monkeypatch.setenv("SPARSETRAIN_CACHE", str(tmp_path / place) if place else "")
    assert main(["doctor", "--json"]) == 0
    assert said in json.loads(capsys.readouterr().out)["compiled"]


@pytest.mark.skipif("SPARSETRAIN_SAMPLE_DATA" not in os.environ, reason="no sample data named")
def test_real_criteo_rows_train_to_the_score_of_other_frameworks(capsys):
    folder = os.environ["SPARSETRAIN_SAMPLE_DATA"]
    parts = {name: f"{folder}/criteo_kaggle_{name}.parquet" for name in ("train", "val", "test")}
    held_out = ["--valid", parts["val"], "--test", parts["test"]]
    assert main(["train", parts["train"], *held_out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test"]["auc"] >= 0.75
