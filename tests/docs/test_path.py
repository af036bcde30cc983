# SPDX-License-Identifier: Apache-2.0
"""The paths through the code in docs/design.md: their files are those that run."""

import ast
import re
from pathlib import Path

import pytest

import sparsetrain as st
from sparsetrain.parsing.keys import text_ids_kernel as key_kernel
from tests import small_dlrm
from tests.acts import calls_of

ROOT = Path(st.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
STEP, VALUE, ANSWER = (
    re.findall(r"^\| `([a-z_/]+\.py)` \|", section, re.MULTILINE)
    for section in PAGE.split("### From ")[1:]
)
EVERY_STEP = STEP[:1]  # the others run when a program is made


@pytest.mark.cpu("a step is one program on a CPU")
def test_the_path_leads_along_the_step_that_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSETRAIN_CACHE", "")
    model = st.models.DLRM(rows=[11, 12], dim=4, bottom=(3,), top=(3,), num_dense=2)
    batch = small_dlrm.batch(8, rows=[11, 12])
    batch = st.Batch(batch.dense[:, :2], batch.ids, batch.labels)
    trainers = []

    def first_step():
        trainers.append(st.Trainer(model, st.optim.adagrad(0.1), target="cpu"))
        trainers[0].step(batch)

    assert set(STEP) <= calls_of(first_step).keys()
    (trainer,) = trainers
    warm = calls_of(lambda: trainer.step(batch))
    assert set(EVERY_STEP) <= warm.keys()
    assert len(warm) <= 15 and warm.total() <= 70


@pytest.mark.cpu("a step is one program on a CPU")
def test_an_update_alone_runs_through_few_files():
    trainer = small_dlrm.trainer()
    loss, gradients = trainer.program(trainer.params, trainer.model.inputs(small_dlrm.batch(8)))
    state = trainer.optimizer.init(trainer.params)

    def apply():
        trainer.optimizer.apply_(trainer.params, gradients, state, loss=loss)

    apply()
    assert len(calls_of(apply)) <= 14


def test_the_path_is_five_files_of_three_thousand_words():
    words = [len((ROOT / file).read_text().split()) for file in STEP]
    assert len(STEP) <= 5 and sum(words) <= 3_000


def test_the_path_from_a_value_to_an_id_leads_along_what_an_encoding_runs():
    rows = {"y": [0, 1], "user": ["a", "b"]}
    encoder = st.data.Encoder.fit(rows, schema=st.data.Schema("y", categories=("user",)))
    run = calls_of(lambda: encoder.encode(rows)).keys()
    built = calls_of(lambda: key_kernel("int32")).keys()
    assert set(VALUE) <= run | built and len(VALUE) <= 5


def test_the_path_to_an_answer_leads_along_what_loading_and_predicting_run(tmp_path):
    small_dlrm.trainer(encoder=small_dlrm.encoder()).save(tmp_path / "run")
    rows = small_dlrm.raw_rows(3)
    run = calls_of(lambda: st.load_predictor(tmp_path / "run").predict(rows)).keys()
    assert set(ANSWER) <= run and len(ANSWER) <= 5


def test_the_page_of_the_paths_is_short():
    assert len(PAGE.split()) <= 1_200


OPENERS = ("What", "How", "Which", "Who", "Whose", "When", "Where", "Whether")


def test_no_module_opens_with_a_question_word():
    modules = [path for path in ROOT.rglob("*.py") if path.name != "__main__.py"]
    first = {path: (ast.get_docstring(ast.parse(path.read_text())) or "-") for path in modules}
    assert [path.name for path, text in first.items() if text.startswith(OPENERS)] == []
