# SPDX-License-Identifier: Apache-2.0
"""`--model MODULE:CLASS`: commands read runs of a class that the package does not have."""

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
    "no option": ([], "model 'Linear' is unknown.*a class of yours is for --model MODULE:CLASS"),
    "no class": (["--model", MODULE], r"--model linear_of_a_test: write MODULE:CLASS, such as"),
    "no module": (["--model", "nowhere:Linear"], "No module named 'nowhere'; it is neither"),
    "no such class": (["--model", f"{MODULE}:Liner"], "linear_of_a_test has no Liner"),
    "another thing": (["--model", f"{MODULE}:NUMBER"], "model is 5; give the class of what was"),
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
