# SPDX-License-Identifier: Apache-2.0
"""The page that `report` writes, curves that it shares with `plot`, and views for notebooks."""

import contextlib
import json
import os
import re
import shlex
import shutil
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain.cli import main
from sparsetrain.cli.curves import charts_of, panels_of, steady

HOSTILE = "<img src=x onerror=alert(1)>&'\""
SETTINGS = ["--set", "model.dim=2", "--set", "model.bottom=[2]", "--set", "model.top=[2]"]
SETTINGS += ["--batch-size", "16", "--set", "train.log_every=3", "--validate-every", "8"]


class Page(HTMLParser):
    """Elements and texts of a page; elements that are not closed in turn fail."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of different settings, whose columns and names would be elements of a page."""
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    columns = {
        "label": rng.integers(0, 2, 1_000),
        "price": rng.random(1_000),
        HOSTILE: rng.integers(0, 9, 1_000),
    }
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    schema = st.data.Schema(label="label", dense=("price",), categories=(HOSTILE,))
    (folder / "log.toml").write_text(schema.to_toml())
    rows = str(folder / "rows.parquet")
    train = ["train", rows, "--valid", rows, "--schema", str(folder / "log.toml"), *SETTINGS]
    assert main([*train, "--out", str(folder / "a"), "--profile"]) == 0
    other = ["--out", str(folder / "<i>b"), "--set", "optimizer.lr=0.1"]
    assert main([*train, *other]) == 0
    return folder


def test_a_report_shows_everything_of_two_runs_and_escapes_what_they_hold(folder, capsys):
    out, rows = folder / "out.html", str(folder / "rows.parquet")
    runs = [str(folder / "a"), str(folder / "<i>b")]
    capsys.readouterr()
    assert main(["report", *runs, "--data", rows, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 2
    text = out.read_text()
    page = Page(text)
    assert not page.tags & {"script", "img", "link", "b"} and "://" not in text
    headings = ["Runs", "Curves", "Scores of rows.parquet", "Columns", "Tables", "Time of a step"]
    headings += ["Importance"]
    places = [page.texts.index(heading) for heading in [*headings, "Settings", "Environment"]]
    assert places == sorted(places)
    assert {HOSTILE, "<i>b", "outside kernels", "optimizer.lr", "numpy"} <= {*page.texts}
    assert "<mark>optimizer.lr</mark>" in text and "<mark>model.dim</mark>" not in text


def test_a_report_begins_with_a_sentence_and_a_command_that_repeats_the_run(folder, tmp_path):
    out = tmp_path / "out.html"
    assert main(["report", str(folder / "a"), "--out", str(out)]) == 0
    texts = Page(out.read_text()).texts
    told = texts[next(n for n, text in enumerate(texts) if text.startswith("DLRM"))]
    assert told.startswith(f"DLRM predicts label, trained by adagrad on {folder}/rows.parquet: ")
    assert re.search(r"Last validation: AUC 0\.\d{4}, logloss 0\.\d{4}\.$", told)
    again = shlex.split(next(text for text in texts if text.startswith("sparsetrain train")))
    assert again[-2:] == ["--out", "again"]
    assert main([*again[1:-1], str(tmp_path / "again")]) == 0
    before, after = (st.Run(where).manifest() for where in (folder / "a", tmp_path / "again"))
    assert before["extra"]["settings"] == after["extra"]["settings"]
    assert before["run"]["scores"] == after["run"]["scores"]


def test_settings_at_their_defaults_are_folded(folder, tmp_path):
    out = tmp_path / "out.html"
    assert main(["report", str(folder / "a"), "--out", str(out)]) == 0
    shown, _, folded = out.read_text().partition("<details>")
    assert "model.dim" in shown and "train.seed" not in shown and "train.seed" in folded


def test_a_run_that_saved_nothing_yet_has_curves_alone(folder, tmp_path):
    (tmp_path / "new").mkdir()
    shutil.copy(folder / "a" / "log.jsonl", tmp_path / "new")
    assert main(["report", str(tmp_path / "new")]) == 0
    texts = Page((tmp_path / "new" / "report.html").read_text()).texts
    assert "Curves" in texts and "Tables" not in texts


def test_a_saved_model_without_a_log_has_tables(folder, tmp_path):
    st.load(folder / "a").save(tmp_path / "saved")
    assert main(["report", str(tmp_path / "saved"), "--out", str(tmp_path / "x.html")]) == 0
    texts = Page((tmp_path / "x.html").read_text()).texts
    assert "Curves" not in texts and "Tables" in texts


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{}/none"], 4, "none: no such folder"),
        (["{}/a", "{}"], 4, "is neither a run nor a saved model"),
        (["{}/a", "--out", "{}/x.pdf"], 2, "unsupported file type: use .html"),
        (["{}/a"] * 9, 2, "9 runs are too many for one page: name 8 at most"),
        (["{}/a", "--data", "{}/none.parquet"], 3, "none.parquet"),
    ],
)
def test_what_no_report_can_be_made_of_is_named(folder, capsys, arguments, code, message):
    assert main(["report", *(a.format(folder) for a in arguments)]) == code
    assert message in capsys.readouterr().err.splitlines()[-1]


ODD_NAMES = [b"a b", b"a\nb", b"-a", b"a:b", b"~a", b"a%20b#?x", b"a\x1b[31m", b"a\xff"]


@pytest.mark.parametrize("name", [os.fsdecode(name) for name in ODD_NAMES], ids=ascii)
def test_runs_and_rows_may_have_odd_names(folder, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "a", name)
    shutil.copy(folder / "rows.parquet", f"{name}.parquet")
    assert main(["report", "--", name]) == 0
    Page((tmp_path / name / "report.html").read_text())
    report = ["report", f"--out={name}.html", f"--data={name}.parquet", "--", name]
    assert main(report) == 0
    assert main(["schema", "--label=label", "--", f"{name}.parquet"]) == 0
    assert (tmp_path / f"{name}.html").exists()


def test_output_on_a_full_disk_is_an_error_that_names_it(folder, capsys, monkeypatch):
    run, rows = str(folder / "a"), str(folder / "rows.parquet")
    for command in (["report", run], ["schema", rows, "--label", "label"]):
        full = open("/dev/full", "w")  # noqa: SIM115
        monkeypatch.setattr("sys.stdout", full)
        assert main(command) == 6
        told = capsys.readouterr().err
        assert told == "sparsetrain: error: standard output: No space left on device\n"
        with contextlib.suppress(OSError):
            full.close()


def test_a_damaged_run_is_refused(folder, tmp_path, capsys):
    shutil.copytree(folder / "a", tmp_path / "a")
    path = tmp_path / "a" / "profile.json"
    for content, message in (("{", "profile.json is damaged"), ('{"rows": 1}', "profile is dam")):
        path.write_text(content)
        assert main(["report", str(tmp_path / "a")]) == 4
        assert message in capsys.readouterr().err
    (tmp_path / "a" / "LATEST").unlink()
    assert main(["report", str(tmp_path / "a")]) == 4
    assert "its LATEST is missing" in capsys.readouterr().err


def test_several_runs_are_drawn_in_one_plot(folder, tmp_path):
    pytest.importorskip("matplotlib")
    runs = [str(folder / "a"), str(folder / "<i>b")]
    assert main(["plot", *runs, "--out", str(tmp_path / "x.svg")]) == 0
    text = (tmp_path / "x.svg").read_text()
    assert "<!-- a -->" in text and "<!-- &lt;i&gt;b -->" in text
    assert "#808080" in text and "#000000" not in text  # the text fits light pages and dark ones
    assert "#ffffff" not in text


# --- Curves -------------------------------------------------------------------------------------


def line(split: str, step: int, epoch: int = 0, rows: int = 100, **more: float) -> dict:
    speed = {"rows_per_s": 10.0 * step, "loss": 0.5} if split == "train" else {}
    return {"split": split, "step": step, "epoch": epoch, "rows": rows, **speed, **more}


LOG = [
    line("train", 1),  # compiles
    line("train", 2),
    line("valid", 2, logloss=0.6, constant_logloss=0.7, auc=0.8),
    line("train", 3),  # waits for the validation
    line("train", 4),
    line("train", 5, rows=20),  # ends the epoch
    line("train", 6, epoch=1),  # waits for the epoch's first rows
    line("train", 7, epoch=1),
]


def test_the_speed_leaves_out_beginnings_validations_and_ends_of_epochs():
    assert [one["step"] for one in steady(LOG)] == [2, 4, 7]
    assert [one["step"] for one in steady(LOG[:1])] == [1]  # nothing better is known


def test_panels_are_those_of_what_was_measured():
    panels = panels_of(LOG)
    assert [*panels] == ["logloss", "AUC", "rows per second"]
    assert [curve.kind for curve in panels["logloss"]] == ["training", "validation", "constant"]
    several = panels_of([line("train", 1), line("valid", 1, **{"loss": 1, "like.rmse": 2})])
    assert [curve.label for curve in several["RMSE"]] == ["like, validation"]
    assert [curve.kind for curve in several["loss"]] == ["training", "validation"]
    assert [*panels_of(LOG[:2])] == ["loss", "rows per second"]
    assert panels_of([line("train", 1, loss=None, rows_per_s=float("inf"))]) == {}


def test_colors_are_those_of_runs_or_of_the_labels_of_one():
    several = [line("train", 1), line("valid", 1, **{"like.rmse": 2, "buy.rmse": 3})]
    loss, rmse, speed = charts_of([("a", several)])
    assert [(one.label, one.color) for one in rmse.series] == [
        *(("like, validation", 1), ("buy, validation", 2))
    ]
    assert [one.color for one in charts_of([("a", LOG)])[0].series] == [0, 0, None]
    both = charts_of([("a", LOG), ("b", LOG)])
    assert [one.color for one in both[0].series] == [0, 0, 0, 1, 1, 1]
    assert speed.from_zero and both[-1].title == speed.title and both[1].series[1].label[0] == "b"


# --- Notebooks ----------------------------------------------------------------------------------


def test_objects_show_as_tables_in_a_notebook(folder):
    trainer = st.load(folder / "a")
    shown = {
        "1 of": trainer,
        "price": trainer.encoder.schema,
        "kind": trainer.encoder,
        "taken for": st.data.infer(folder / "rows.parquet", "label"),
        "distinct": st.data.profile(folder / "rows.parquet", schema=trainer.encoder.schema),
        "outside kernels": st.StepProfile.from_dict(st.Run(folder / "a").profile()),
        "argument": st.Program(trainer.model.export(), "logits"),
        "whole": st.data.Interactions.read({"user": [1] * 4, "item": [1, 2, 3, 4]}).leave_one_out(),
        "parameters": trainer.model,
        "5 x 4": st.RowSparse.from_numpy([2, 0], np.ones((2, 4), "float32"), num_rows=5),
    }
    for text, value in shown.items():
        page = Page(value._repr_html_())
        assert "table" in page.tags and any(text in found for found in page.texts)
        assert "img" not in page.tags
