# SPDX-License-Identifier: Apache-2.0
"""Results that were recorded, and hold until a change says why they may not."""

import json
import platform
from pathlib import Path

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.errors import ConfigError
from sparsetrain.serving.libraries import compiler
from sparsetrain.sklearn import ClickClassifier
from tests.golden import answers, layouts, programs, runs
from tests.helpers import slow_except

FOLDER = Path(__file__).parent
ON_X86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="of x86-64")


def recorded(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text())


def test_ids_and_floats_of_every_layout_and_type():
    found = layouts.found()
    for name, wanted in recorded("layouts").items():
        assert found[name] == wanted, name


@pytest.mark.parametrize("name", slow_except(programs.QUICK, recorded("programs")))
def test_the_programs_that_go_to_llvm(name):
    assert programs.found([name])[name] == recorded("programs")[name]


@pytest.mark.cpu("the models were saved by a CPU")
@pytest.mark.parametrize("name", runs.NAMES)
def test_a_saved_model_loads_and_predicts_as_it_did(name, tmp_path):
    folder, wanted = runs.unpacked(name, tmp_path), recorded("runs")[name]
    rows = runs.rows_of(name)
    found = runs.predictions(st.load_predictor(folder), rows)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)
    if name == runs.ESTIMATOR:
        again = ClickClassifier.load(folder).predict_proba(rows.head(10))[:, 1]
        np.testing.assert_allclose(again, wanted, rtol=2e-5)


@pytest.mark.cpu("the models were saved by a CPU")
@pytest.mark.parametrize("name", slow_except(runs.GO_ON_QUICKLY, runs.KINDS))
def test_a_saved_model_goes_on_training(name, tmp_path):
    folder = runs.unpacked(name, tmp_path)
    trainer = st.load(folder, parallel=st.parallel.local(2) if name == runs.IN_PARTS else None)
    before = trainer.steps
    rows = runs.rows_of(name)
    trainer.fit(rows, batch_size=16, epochs=3, run=folder, resume=True, progress=None)
    assert trainer.steps > before


@ON_X86
def test_answers_of_exported_libraries(tmp_path):
    try:
        compiler()
    except ConfigError as error:
        pytest.skip(str(error))
    found = answers.found(tmp_path)
    for name, wanted in recorded("answers").items():
        np.testing.assert_array_equal(np.float32(found[name]), np.float32(wanted), name)
