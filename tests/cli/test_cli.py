# SPDX-License-Identifier: Apache-2.0
"""The command line over a fake library: exit codes, streams, places, signals.

What the commands compute is tested where it is computed; `test_real.py` runs them for real.
"""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from functools import wraps
from types import SimpleNamespace

import numpy as np
import pytest
import typer

import sparsetrain
from sparsetrain import errors
from sparsetrain.cli import main
from sparsetrain.cli.app import app
from sparsetrain.labels import Labels

SCORES = {
    "auc": 0.75,
    "auc_bound": 1e-6,
    "logloss": 0.5,
    "ne": 0.9,
    "calibration": np.float32(1.0),
    "rows": 10,
    "constant_logloss": 0.6,
    "positive_rate": 0.25,
}


class FakeEncoder:
    layout = "raw, Criteo names"
    rows = [3, 4]
    num_dense = 13
    dense_columns = ()
    columns = ("C1", "C2")
    tables = {"C1": 3, "C2": 4}
    labels = {"label": "binary"}
    schema = SimpleNamespace(weights=None, bins={})
    model_arguments = {
        "rows": rows,
        "names": columns,
        "num_dense": num_dense,
        "row_weights": False,
        "share_embedding": {},
        "labels": labels,
    }


class FakeTrainer:
    """Trains for four batches of one row; `during` runs in each."""

    encoder = None
    model = SimpleNamespace(all_labels=Labels({"label": "binary"}))

    def __init__(self, library):
        self.library = library

    steps, encoder, target = 1, FakeEncoder(), "llvm"
    optimizer = SimpleNamespace(
        describe=lambda *_: ["embeddings.C1.weight: touched rows; lazy"],
        summarize=lambda *_: "touched rows (26 tables)",
    )
    state, params, accumulate = SimpleNamespace(skipped=2), {}, 1
    scaling = None
    prediction_names = ("probability",)

    def fit(self, train, *, validation, epochs, stop, run, **options):
        self.library.calls.append("fit")
        scored = {"valid": self.library.scores} if validation else {}
        rows = 0
        while rows < 4 and not stop():
            self.library.during()
            rows += 1
        if run is not None:
            self.library.calls.append("save")
            self.library.saved = (str(run.folder), run.extra)
        return {
            "rows": rows,
            "seconds": 2.0,
            "rows_per_s": rows / 2,
            "epochs": [{"rows": rows, "loss": 0.5, **scored}] * epochs,
            "stopped": rows < 4,
            "stopped_early": False,
            "best": None,
            "checkpoint": "latest",
        }

    def evaluate(self, data, batch_size=4096, **options):
        self.library.calls.append("evaluate")
        return self.library.scores

    def predict(self, data, batch_size=4096):
        return np.array([0.25, 0.75], dtype=np.float32)


class FakeLibrary:
    """Stands for `sparsetrain`; notes the calls that matter here."""

    def __init__(self):
        self.calls, self.saved, self.built = [], None, {}
        self.scores = dict(SCORES)
        self.missing = ()

    def during(self):
        pass

    def open_source(self, data, schema=None):
        for path in [data] if isinstance(data, str) else data:
            if path in self.missing:
                raise errors.DataError(f"{path}: no such file")

    def fit_encoder(self, sources, **settings):
        self.calls.append("fit encoder")
        self.built["data"] = settings
        return FakeEncoder()

    def dataset(self, path, encoder, require_label=True, read_weights=True):
        self.calls.append(f"read {path}")
        return SimpleNamespace(batches=lambda batch_size, prefetch: iter(()), id_shares=())

    def optimizer(self, **settings):
        self.built["optimizer"] = settings

    def trainer(self, model, **settings):
        self.built["trainer"] = settings
        return FakeTrainer(self)

    def names(self):
        return {
            "data": SimpleNamespace(
                open_source=self.open_source,
                require_labels=lambda source, schema: None,
                Schema=SimpleNamespace(read=lambda given: given),
                Dataset=self.dataset,
                Encoder=SimpleNamespace(fit=self.fit_encoder),
            ),
            "optim": SimpleNamespace(
                sgd=self.optimizer,
                adagrad=self.optimizer,
                OPTIMIZERS=sparsetrain.optim.OPTIMIZERS,
                options_of=sparsetrain.optim.options_of,
            ),
            "Trainer": self.trainer,
            "load_predictor": lambda folder, checkpoint, precision, model: FakeTrainer(self),
        }


@pytest.fixture
def library(monkeypatch):
    fake = FakeLibrary()

    @wraps(sparsetrain.models.DLRM.__init__)  # of which settings are read
    def build(_model, rows, **settings):
        fake.built["model"] = {"rows": rows, **settings}

    monkeypatch.setattr(sparsetrain.models.DLRM, "__init__", build)
    for name, value in fake.names().items():
        monkeypatch.setitem(vars(sparsetrain), name, value)
    for name in [name for name in os.environ if name.startswith("SPARSETRAIN_")]:
        monkeypatch.delenv(name)
    return fake


def test_train_ends_stdout_with_one_json_object(library, capsys):
    assert main(["train", "a", "b", "--valid", "v", "--test", "t", "--json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert {"valid", "test", "constant_logloss", "rows_per_s", "settings"} <= set(result)
    assert result["test"] == {**SCORES, "calibration": 1.0}
    assert (result["constant_logloss"], result["rows_per_s"]) == (0.6, 2.0)
    assert result["settings"]["train"]["batch_size"] == 128
    assert "layout: raw, Criteo names" in printed.err
    assert "updates: touched rows (26 tables); --verbose lists the tables" in printed.err
    assert "embeddings." not in printed.err
    assert "2 steps were skipped" in printed.err


@pytest.mark.parametrize("option", ["-v", "--verbose"])
def test_train_says_of_each_table_how_it_is_updated_if_asked(library, capsys, option):
    assert main(["train", "a", option]) == 0
    assert "embeddings.C1.weight: touched rows; lazy" in capsys.readouterr().err


def test_the_dtype_of_tables_reaches_the_model_and_a_wrong_one_is_refused(library, capsys):
    assert main(["train", "a", "--table-dtype", "bfloat16"]) == 0
    assert library.built["model"]["table_dtype"] == "bfloat16"
    capsys.readouterr()
    assert main(["train", "a", "--table-dtype", "int4"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "--table-dtype" in said and "bfloat16" in said


def test_train_prints_a_table_for_people(library, capsys):
    assert main(["train", "a", "--test", "t"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "trained on 4 rows in 2 s, 2 rows/s"
    assert lines[2].split() == ["rows", "AUC", "logloss", "constant's", "NE", "calibration"]
    assert lines[3].split() == ["test", "10", "0.7500", "0.5000", "0.6000", "0.9000", "1.000"]


def test_several_epochs_are_scored_one_by_one(library, capsys):
    assert main(["train", "a", "--valid", "v", "--epochs", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:5] == [
        "epoch  training loss  valid AUC  valid logloss",
        "1             0.5000     0.7500         0.5000",
        "2             0.5000     0.7500         0.5000",
    ]
    assert "evaluate" not in library.calls


def test_a_score_that_is_not_defined_prints_as_a_dash(library, capsys):
    library.scores["auc"] = None
    assert main(["evaluate", "model", "t"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["t", "10", "-"]


def test_a_useless_model_is_loud(library, capsys):
    library.scores["logloss"] = 0.6
    assert main(["train", "a", "--test", "t"]) == 0
    assert "warning: on test the model is no better than a constant" in capsys.readouterr().err


def test_settings_reach_the_library_and_are_saved_with_the_run(library, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSETRAIN_MODEL__DIM", "8")
    config = tmp_path / "run.toml"
    of_model = 'dim = 4\nbottom = [32]\ninteraction = "cross"\ncross_layers = 2\n'
    config.write_text(f"[model]\n{of_model}[train]\nseed = 7\n")
    out = tmp_path / "deep" / "run"
    options = ["--optimizer", "sgd", "--lr", "0.5", "--min-count", "2", "--config", str(config)]
    assert main(["train", "a", "--out", str(out), *options, "--set", "model.top=16,8"]) == 0
    interaction = {"interaction": "cross", "cross_layers": 2, "cross_rank": None}
    assert library.built["model"] == {
        "rows": [3, 4],
        "num_dense": 13,
        "names": ("C1", "C2"),
        "dim": 8,
        "bottom": (32,),
        "top": (16, 8),
        "table_dtype": "float32",
        "label_weights": None,
        "pooling": None,
        "row_weights": False,
        "share_embedding": {},
        "labels": {"label": "binary"},
        "dropout": 0.0,
        "batch_norm": False,
        **interaction,
    }
    assert library.built["optimizer"] == {"lr": 0.5}
    assert library.built["data"]["min_count"] == 2
    assert library.built["trainer"]["seed"] == 7
    folder, extra = library.saved
    assert folder == str(out)
    chosen = {"dim": 8, "bottom": [32], "top": [16, 8], "table_dtype": "float32"}
    rest = {
        "name": "dlrm",
        "dropout": 0.0,
        "batch_norm": False,
        "label_weights": None,
        "pooling": None,
    }
    assert extra["settings"]["model"] == {**chosen, **rest, **interaction}


def test_held_out_files_are_read_before_the_training_and_scored_after_saving(library, tmp_path):
    main(["train", "a", "--valid", "v", "--test", "t", "--out", str(tmp_path / "run")])
    before, after = ["fit encoder", "read v", "read t"], ["fit", "save", "evaluate"]
    assert library.calls == before + after


@pytest.mark.parametrize("missing", ["a", "v", "t"])
def test_a_missing_file_is_found_before_anything_slow(library, capsys, tmp_path, missing):
    library.missing = (missing,)
    out = tmp_path / "run"
    assert main(["train", "a", "--valid", "v", "--test", "t", "--out", str(out)]) == 3
    assert capsys.readouterr().err == f"sparsetrain: error: {missing}: no such file\n"
    assert library.calls == []
    assert list(tmp_path.iterdir()) == []


def occupied(path):
    path.mkdir()
    (path / "mine.txt").write_text("keep")


def read_only_parent(path):
    path.parent.mkdir()
    path.parent.chmod(0o500)


@pytest.mark.parametrize(
    "name, prepare, message",
    [
        ("run", occupied, "exists already; name a new folder or remove this one"),
        ("run", lambda path: path.symlink_to("nowhere"), "exists already"),
        ("file/run", lambda path: path.parent.write_text(""), "is not a folder"),
        pytest.param(
            "locked/run",
            read_only_parent,
            "no permission to write in",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere"),
        ),
    ],
)
def test_an_out_folder_that_cannot_be_made_is_found_first(
    library, capsys, tmp_path, name, prepare, message
):
    path = tmp_path / name
    prepare(path)
    assert main(["train", "a", "--out", str(path)]) == 2
    assert message in capsys.readouterr().err
    assert library.calls == []


ERRORS = [
    (errors.ConfigError("bad\nsetting"), 2, "error: bad setting"),
    (errors.DataError("a.parquet: row 3"), 3, "error: a.parquet: row 3"),
    (errors.CheckpointError("bad run"), 4, "error: bad run"),
    (errors.NumericalError("loss is nan"), 5, "error: loss is nan"),
    (errors.ResourceError("no memory"), 6, "error: no memory"),
    (MemoryError(), 6, "error: out of memory; "),
    (RuntimeError("InternalError: std::bad_alloc"), 6, "error: out of memory; "),
    (OSError(errno.ENOSPC, "No space left on device", "x"), 6, "error: x: No space left"),
    (PermissionError(errno.EACCES, "Permission denied", "x"), 3, "error: x: Permission denied"),
    (KeyError("x"), 1, "error: a bug in this package, please report it: KeyError: 'x'"),
]


def test_names_in_data_do_not_reach_the_terminal_as_commands(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("label,I\x1b]0;mine\x07\u202e,C1\n1,x,3\n", encoding="utf-8")
    schema = 'dense = ["I\\u001b]0;mine\\u0007\\u202e"]\ncategories = ["C1"]\n'
    (tmp_path / "schema.toml").write_text(schema)
    train = ["train", str(tmp_path / "a.csv"), "--schema", str(tmp_path / "schema.toml")]
    train += ["--set", "model.dim=4", "--set", "model.bottom=8", "--set", "model.top=8"]
    assert main(train) == 3
    said = capsys.readouterr().err
    assert r"line 2, column 'I\x1b]0;mine\x07\u202e': 'x' is not a number" in said
    assert not set(said) & set("\x1b\x07\u202e")


@pytest.mark.parametrize("error, code, message", ERRORS, ids=lambda value: repr(value)[:30])
def test_every_error_becomes_its_code_and_one_line(library, capsys, error, code, message):
    def fail():
        raise error

    library.during = fail
    assert main(["train", "a", "--json"]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    last = printed.err.splitlines()[-1]
    assert last.startswith(f"sparsetrain: {message}")
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    "arguments, environ, shown",
    [
        (["train", "a"], {}, False),
        (["train", "a"], {"SPARSETRAIN_TRACEBACK": "0"}, False),
        (["train", "a"], {"SPARSETRAIN_TRACEBACK": "1"}, True),
        (["--traceback", "train", "a"], {}, True),
        (["train", "a", "--traceback"], {}, True),
    ],
)
def test_a_traceback_is_shown_only_when_asked_for(
    library, capsys, monkeypatch, arguments, environ, shown
):
    library.missing = ("a",)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(arguments) == 3
    assert ("Traceback" in capsys.readouterr().err) is shown


USAGE = [
    ([], "Usage: sparsetrain"),
    (["trian"], "No such command 'trian'"),
    (["train"], "Missing argument 'TRAIN'. (see sparsetrain train --help)"),
    (["train", "a", "--epoch", "1"], "No such option: --epoch"),
    (["train", "a", "--epochs", "x"], "--epochs: train.epochs = 'x' must be a valid integer"),
    (["train", "a", "--epochs", "0"], "--epochs: train.epochs = 0 must be greater than or equal"),
    (["train", "a", "--target", "gpu"], "--target: train.target = 'gpu' must be 'auto', 'cpu'"),
    (["train", "a", "--set", "train.epoch=1"], "did you mean 'train.epochs'?"),
    (["train", "a", "--config", "none.toml"], "none.toml: cannot read settings"),
    (["train", "a", "--set", "train.seed=-1"], "train.seed = -1 must be greater"),
    (["demo", "--folder", "/"], "--folder /: exists already"),
    (["evaluate", "model"], "Missing argument 'DATA'"),
    (
        ["predict", "model", "a", "--out", "a.txt"],
        "--out a.txt: unsupported file type: use .parquet or",
    ),
    (["predict", "model", "a"], "Missing option '--out'"),
    (["predict", "model", "a", "--out", "a.csv", "--keep", "probability"], "--keep probability: "),
]


@pytest.mark.parametrize("arguments, message", USAGE, ids=lambda value: " ".join(value)[:30])
def test_wrong_usage_is_code_two_and_one_line(library, capsys, arguments, message):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert library.calls == []
    assert not arguments or printed.err.count("\n") == 1


@pytest.mark.parametrize("signum, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_training_after_the_batch_and_saves(library, capsys, tmp_path, signum, code):
    library.during = lambda: os.kill(os.getpid(), signum)
    before = signal.getsignal(signum)
    arguments = ["train", "a", "--test", "t", "--out", str(tmp_path / "run"), "--json"]
    assert main(arguments) == code
    assert library.calls == ["fit encoder", "read t", "fit", "save"]
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert (result["rows"], result["test"], result["stopped"]) == (1, None, signum.name)
    assert printed.err.endswith(f"sparsetrain: stopped by {signum.name}\n")
    assert signal.getsignal(signum) is before


def test_a_second_signal_stops_at_once(library, tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    library.during = twice
    assert main(["train", "a", "--out", str(tmp_path / "run")]) == 130
    assert library.calls == ["fit encoder", "fit"]


def test_a_signal_before_the_training_stops_at_once(library, monkeypatch):
    monkeypatch.setattr(library, "open_source", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    schema = SimpleNamespace(read=lambda given: given)
    fake = SimpleNamespace(open_source=library.open_source, Schema=schema)
    monkeypatch.setitem(vars(sparsetrain), "data", fake)
    assert main(["train", "a"]) == 143
    assert library.calls == []


def test_a_model_that_will_not_be_kept_is_said_first(library, capsys, tmp_path):
    said = "the trained model will not be saved: --out FOLDER saves it"
    assert main(["train", "a"]) == 0
    assert said in capsys.readouterr().err.splitlines()[0]
    assert main(["train", "a", "--out", str(tmp_path / "run")]) == 0
    assert said not in capsys.readouterr().err


def test_instructions_that_are_missing_are_found_before_data_are_read(library, capsys):
    assert main(["train", "a", "--precision", "bf16", "--target", "llvm"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "sparsetrain: error: precision: the target llvm has no AVX512_BF16 instructions; "
        "use --precision float32"
    )
    assert library.calls == []


@pytest.mark.parametrize("option", ["--patience", "--validate-every"])
def test_what_validation_decides_needs_rows_to_validate_on(library, capsys, option):
    assert main(["train", "a", option, "2"]) == 2
    assert f"{option} (train." in (said := capsys.readouterr().err)
    assert "needs validation rows: add --valid or --valid-share or --valid-from" in said
    assert library.calls == []
    assert main(["train", "a", "--valid", "v", option, "2"]) == 0


def test_settings_are_listed_as_a_file_for_config(capsys, tmp_path):
    assert main(["settings", "--set", "model.dim=8"]) == 0
    listed = capsys.readouterr().out
    (tmp_path / "mine.toml").write_text(listed)
    assert main(["settings", "--config", str(tmp_path / "mine.toml")]) == 0
    assert capsys.readouterr().out == listed
    assert main(["settings", "--config", str(tmp_path / "mine.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["dim"] == 8


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_predict_writes_one_probability_per_row(library, capsys, tmp_path, suffix):
    pandas = pytest.importorskip("pandas")
    out = tmp_path / "new" / f"p.{suffix}"
    assert main(["predict", "model", "rows", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "rows": 2,
        "out": str(out),
        "mean_probability": 0.5,
        "unseen_share": 0.0,
        "missing_share": 0.0,
        "unseen_columns": {},
    }
    table = getattr(pandas, f"read_{suffix}")(out)
    assert list(table.columns) == ["probability"]
    assert table["probability"].tolist() == [0.25, 0.75]
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_predict_never_writes_over_its_input(library, capsys, tmp_path):
    rows = tmp_path / "rows.parquet"
    rows.write_bytes(b"mine")
    assert main(["predict", "model", str(rows), "--out", str(rows)]) == 2
    assert rows.read_bytes() == b"mine"


def test_predict_never_writes_into_the_folder_that_it_reads(library, capsys, tmp_path):
    rows = tmp_path / "rows"
    (rows / "day=1").mkdir(parents=True)
    (rows / "part-0.parquet").write_text("raw")
    (tmp_path / "link").symlink_to(rows)
    for out in (rows / "part-0.parquet", rows / "day=1" / "new.csv", tmp_path / "link" / "a.csv"):
        assert main(["predict", "model", str(rows), "--out", str(out)]) == 2
        assert "the input file, or a file in the input folder; name" in capsys.readouterr().err
    assert (rows / "part-0.parquet").read_text() == "raw"


def test_a_reader_that_has_left_causes_no_complaint():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "sparsetrain", "--version"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{sparsetrain.__version__}\n"


def test_help_lists_every_command_in_a_group_with_its_whole_summary(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "..." not in text.partition("[ARGS]...")[2]
    flat = " ".join(text.split())
    for command in typer.main.get_command(app).commands.values():
        summary = " ".join(command.help.partition("\n\n")[0].split())
        assert f" {command.name} {summary}" in flat
    assert [line[:-1] for line in text.splitlines() if re.fullmatch(r"\w.*:", line)] == [
        *("Options", "Train", "Data", "Look at data and runs", "Predict and serve"),
        "Measure and check",
    ]
