# SPDX-License-Identifier: Apache-2.0
"""`--model MODULE:CLASS`: commands train and read a class that the package does not have."""

import json
import re
import sys
from textwrap import dedent

import pandas as pd
import pytest

import sparsetrain as st
from sparsetrain.cli import main
from tests import small_dlrm

MODULE = "linear_of_a_test"
TEXT = """
    import sparsetrain as st
    from tvm.relax.frontend import nn

    class Linear(st.models.ClickModel):
        def __init__(self, rows, dim=4, num_dense=13, scale=1.0, **rest):
            super().__init__(rows, dim, num_dense, **rest)
            self.scale = scale
            self.last = nn.Linear(num_dense + len(rows) * dim, 1)

        def config(self):
            return {**super().config(), "scale": self.scale}

        def forward(self, dense, embedded):
            flat = nn.op.reshape(embedded, (dense.shape[0], -1))
            return self.last(nn.op.concat([dense, flat], dim=1)) * self.scale

    class Factors(st.models.Model):
        def __init__(self, users, items, dim=4):
            super().__init__()
            self.user = st.embedding.Embedding(users, dim)
            self.item = st.embedding.Embedding(items, dim)
            self.features = {"user": st.models.Ids("user"), "item": st.models.Ids("item")}
            self.labels = {"click": "binary"}

        @classmethod
        def for_encoder(cls, encoder, **options):
            return cls(encoder.tables["user"], encoder.tables["item"], **options)

        def forward(self, user, item):
            return nn.op.sum(self.user(user) * self.item(item), axis=1, keepdims=True)

    NUMBER = 5
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with the module, the run of its class and the rows that it was trained on."""
    folder = tmp_path_factory.mktemp("own")
    (folder / f"{MODULE}.py").write_text(dedent(TEXT))
    (folder / "broken_of_a_test.py").write_text("import math\nmath.sqrt(-1)\n")
    (folder / "program_of_a_test.py").write_text("raise SystemExit(0)\n")
    names: dict = {"__name__": MODULE}
    exec(dedent(TEXT), names)
    encoder = small_dlrm.encoder()
    model = names["Linear"](encoder.rows, names=encoder.columns, scale=0.5)
    trainer = st.Trainer(model, st.optim.adagrad(0.05), encoder=encoder)
    trainer.fit(small_dlrm.raw_rows(200), progress=None)
    trainer.save(folder / "run")
    pd.DataFrame(small_dlrm.raw_rows(50)).to_parquet(folder / "rows.parquet")
    return folder, trainer


@pytest.fixture
def here(saved, monkeypatch):
    """The folder, in which commands run; what they add to the path goes."""
    monkeypatch.chdir(saved[0])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return saved[0]


OWN = ["--model", f"{MODULE}:Linear"]


def test_evaluate_predict_quantize_and_inspect_take_the_class(here, saved, capsys):
    rows, trainer = here / "rows.parquet", saved[1]
    assert main(["evaluate", "run", str(rows), "--json", *OWN]) == 0
    assert json.loads(capsys.readouterr().out)["auc"] == trainer.evaluate(str(rows))["auc"]
    assert main(["predict", "run", str(rows), "--out", "p.parquet", *OWN]) == 0
    written = pd.read_parquet("p.parquet")["probability"].to_numpy()
    assert written.tobytes() == trainer.predict(str(rows)).tobytes()
    assert main(["quantize", "run", "--out", "small", *OWN]) == 0
    capsys.readouterr()
    assert main(["inspect", "small", *OWN]) == 0
    text = capsys.readouterr().out
    assert "a Linear after 2 steps" in text and "scale 0.5" in text and "tables in uint8" in text
    assert main(["inspect", "run", "--json", *OWN]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["model"], found["config"]["scale"]) == ("model", "Linear", 0.5)
    assert found["optimizer"] == "adagrad"


def _assert_one_line(err: str, message: str) -> None:
    assert err.count("\n") == 1 and re.search(message, err), err


REFUSED = {
    "no option": ([], "model 'Linear' is unknown.*for your own class use --model MODULE:CLASS"),
    "no class": (["--model", MODULE], r"--model linear_of_a_test: write MODULE:CLASS, such as"),
    "no module": (
        ["--model", "nowhere:Linear"],
        "No module named 'nowhere'; the module is neither",
    ),
    "no such class": (["--model", f"{MODULE}:Liner"], "linear_of_a_test has no Liner"),
    "another thing": (["--model", f"{MODULE}:NUMBER"], "model is 5; give the class of the saved"),
    "another class": (["--model", "sparsetrain.models:DLRM"], "its model is 'Linear', not 'dlrm'"),
    "a module that raises": (["--model", "broken_of_a_test:A"], "broken_of_a_test raises ValueErr"),
    "a program": (["--model", "program_of_a_test:A"], r"program_of_a_test raises SystemExit\(0\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_class_of_the_model_is_refused(here, case, capsys):
    options, message = REFUSED[case]
    assert main(["inspect", "run", *options]) in (2, 4)
    _assert_one_line(capsys.readouterr().err, message)


def test_of_data_there_is_no_class(here, capsys):
    assert main(["inspect", "rows.parquet", *OWN]) == 2
    _assert_one_line(capsys.readouterr().err, "--model: rows.parquet is not a saved model")


def _visits(first: int) -> pd.DataFrame:
    """Rows whose users and items are numbered from `first` on."""
    return pd.DataFrame(
        {
            "user": [first + row % 40 for row in range(400)],
            "item": [first + row % 7 for row in range(400)],
            "click": [row % 2 for row in range(400)],
        }
    )


FACTORS = ["--model", f"{MODULE}:Factors"]


def test_a_class_without_an_argument_rows_is_trained_resumed_and_started_from(here, capsys):
    _visits(0).to_parquet("first.parquet")
    _visits(5).to_parquet("second.parquet")
    new = ["train", "first.parquet", "--label", "click", "--out", "first"]
    assert main([*new, *FACTORS, "--set", "model.dim=8"]) == 0
    assert main(["train", "--resume", "first", *FACTORS, "--set", "train.epochs=2"]) == 0
    start = ["train", "second.parquet", "--start-from", "first", "--out", "second"]
    assert main([*start, *FACTORS]) == 0
    capsys.readouterr()
    assert main(["inspect", "second", "--json", *FACTORS]) == 0
    assert json.loads(capsys.readouterr().out)["config"] == {"users": 47, "items": 14, "dim": 8}


NOT_TRAINED = {
    "no such class": (["--model", f"{MODULE}:Facors"], "linear_of_a_test has no Facors"),
    "no model": (["--model", f"{MODULE}:NUMBER"], "it is 5, not a subclass of st.models.Model"),
    "no option": ([*FACTORS, "--set", "model.dims=8"], "'model.dims'; did you mean 'model.dim'"),
}


@pytest.mark.parametrize("case", NOT_TRAINED)
def test_what_cannot_be_trained_is_told_before_data_are_read(here, case, capsys):
    options, message = NOT_TRAINED[case]
    assert main(["train", "nowhere.parquet", "--label", "click", *options]) == 2
    _assert_one_line(capsys.readouterr().err, message)


def test_a_class_that_a_file_names_is_not_imported(here, capsys):
    (here / "settings.toml").write_text(f'[model]\nname = "{MODULE}:Factors"\n')
    asked = ["train", "rows.parquet", "--config", "settings.toml"]
    assert main(asked) == 2
    _assert_one_line(capsys.readouterr().err, f"your own class, .*: add --model {MODULE}:Fact")
    assert MODULE not in sys.modules
