# SPDX-License-Identifier: Apache-2.0
"""Code, names and commands of the pages: blocks run, names and options exist."""

import re
import shlex
from functools import reduce
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer.main

import sparsetrain as st
from sparsetrain.cli.app import app, main
from sparsetrain.cli.settings.fields import fields_of
from sparsetrain.cli.settings.schema import settings_of
from tests import small_dlrm

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = typer.main.get_command(app).commands


def blocks(page: str, language: str) -> list[str]:
    """Blocks of a language; commands and results have none."""
    fences = re.findall(
        r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
    )
    return [code for named, code in fences if named == language]


@pytest.fixture
def names(tmp_path, monkeypatch) -> dict:
    """What the pages take for granted: files, a trained model, its batches."""
    monkeypatch.chdir(tmp_path)
    rows = small_dlrm.raw_rows(300)
    frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    for name in ("train", "valid", "test"):
        frame.assign(importance=0.5).to_parquet(f"{name}.parquet")
    encoder = small_dlrm.encoder()
    trainer = small_dlrm.trainer(encoder=encoder)
    batches = [small_dlrm.batch(16, seed) for seed in range(3)]
    return {
        "st": st,
        "encoder": encoder,
        "trainer": trainer,
        "model": trainer.model,
        "train": frame,
        "frame": frame.drop(columns="label"),
        "batch": batches[0],
        "batches": batches,
        "dataset": st.data.Dataset(frame, encoder),
    }


def run(page: str, names: dict) -> dict:
    for block in blocks(page, "python"):
        exec(block, names)
    return names


def test_data(names, capsys):
    names = run("docs/data.md", names)
    assert names["position"].row in (0, 300) and len(list(names["rest"])) == 1  # the next epoch
    assert names["probabilities"].shape == (300,) and capsys.readouterr().out.startswith("{'C1'")


def test_checkpoints(names, monkeypatch):
    names = run("docs/checkpoints.md", names)
    assert names["trainer"].steps and Path("run/LATEST").exists()


def test_performance(names, capsys):
    run("docs/performance.md", names)
    assert "outside kernels" in capsys.readouterr().out.lower()


def test_dead_rows(names, capsys):
    run("docs/dead-rows.md", names)
    page = (ROOT / "docs/dead-rows.md").read_text().replace("\\\n", "")
    assert capsys.readouterr().out.strip() in page


def test_precision(names):
    names = run("docs/precision.md", names)
    assert "relax.max" in names["policy"].neighbours
    assert list(names["products"].always) == ["relax.matmul"]


def test_optimizers(names):
    first, accumulate, _ = blocks("docs/optimizers.md", "python")
    names["model"] = model = small_dlrm.model()
    exec(first, names)
    params = model.initialize(0)
    optimizer = names["optimizer"]
    program = st.value_and_grad(model.export(), "loss")
    part = names["batch"]
    names |= {"params": params, "state": optimizer.init(params), "total": 32}
    names |= {"parts": [range(16), range(16)], "program": program, "inputs": model.inputs(part)}
    exec(accumulate, names)
    assert names["state"].step == 1


@pytest.mark.peers
def test_tables_in_a_loop_of_pytorch():
    import torch

    ids = torch.tensor([range(8), range(4, 12)])  # (B, 8)
    names = {"batches": [(ids, torch.tensor([0.0, 1.0]))] * 3}
    exec(blocks("docs/torch.md", "python")[0], names)
    weight = names["table"].weight
    assert names["sparse"].param_groups[0]["lr"] == pytest.approx(0.001 * 0.999**3)
    assert weight.grad.coalesce().indices()[0].tolist() == list(range(12))


@pytest.mark.peers
def test_a_pytorch_module_as_a_model():
    import torch

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = st.torch.RowSparseEmbedding(100, 4)
            self.linear = torch.nn.Linear(2 + 3 * 4, 1)

        def forward(self, dense, ids):
            return self.linear(torch.cat([dense, self.table(ids).flatten(1)], 1)).squeeze(1)

    torch.manual_seed(0)
    dense, ids, labels = torch.rand(8, 2), torch.randint(100, (8, 3)), torch.arange(8) % 2.0
    module = Module()
    names = {"st": st, "torch": torch, "module": module, "dense": dense, "ids": ids}
    names |= {"labels": labels, "batches": [(dense, ids, labels)] * 3}
    names["optimizer"] = st.optim.adagrad(0.1)
    exec(blocks("docs/torch.md", "python")[1], names)
    expected = module(dense, ids).detach().numpy()
    assert names["loss"].numpy() < np.log(2) and module.linear.weight.grad is None
    np.testing.assert_allclose(names["scores"].numpy(), expected, rtol=1e-4, atol=1e-6)


def test_every_public_name_in_the_pages_exists():
    found = {n for page in PAGES for n in re.findall(r"\bst\.([\w.]+\w)", page.read_text())}
    assert len(found) > 30
    if find_spec("torch") is None:
        found = {name for name in found if not name.startswith("torch.")}
    for name in found:
        assert reduce(getattr, name.split("."), st) is not None


def commands() -> list[str]:
    """Every command of the pages, in one line, without what stands behind it."""
    found = []
    for page in PAGES:
        for block in blocks(str(page), ""):
            for line in block.replace("\\\n", " ").splitlines():
                found += [line] if line.startswith("sparsetrain ") else []
    return found


def test_commands_of_the_pages_have_their_options_and_settings():
    lines = commands()
    assert len(lines) > 30
    unknown = {line: _unknown(line) for line in lines}
    assert not any(unknown.values()), unknown


@pytest.mark.slow
def test_the_first_commands_of_the_readme_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = next(b for b in blocks("README.md", "") if "sparsetrain generate" in b)
    lines = [shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines()]
    codes = {" ".join(words): main(words[1:]) for words in lines if words}
    assert codes == dict.fromkeys(codes, 0)


def _unknown(line: str) -> set[str]:
    """Return options and settings of a command that there are not."""
    words = shlex.split(line.replace("...", ""), comments=True)[1:]
    words = words[: words.index(">")] if ">" in words else words
    options = {name for parameter in COMMANDS[words[0]].params for name in parameter.opts}
    models = st.models.MODELS  # `--model` of other commands names a class
    named = [value for option, value in pairwise(words) if option == "--model" and value in models]
    known = {key for key, _ in fields_of(settings_of(*named or ["dlrm"]))}
    changed = {value.partition("=")[0] for option, value in pairwise(words) if option == "--set"}
    return {word for word in words if word.startswith("--")} - options | changed - known
