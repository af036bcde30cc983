# SPDX-License-Identifier: Apache-2.0
"""A model with tables in rows of int8 predicts as the one it was made from, and does no more."""

from functools import cache

import numpy as np
import pytest
from tvm.target import Target

import sparsetrain as st
from sparsetrain.backend import backends
from sparsetrain.cli import main
from sparsetrain.errors import CheckpointError, ConfigError, NumericalError
from sparsetrain.kernels.table_formats import format_of
from tests import small_dlrm
from tests.backends.plain import Plain
from tests.kernels.table_formats.in_numpy import dequantized
from tests.small_dlrm import assert_same_state


@cache
def _compiled(kind: str) -> st.Program:
    return small_dlrm.trainer(kind).quantized()._logits


def shared(made: st.QuantizedModel, kind: str = "single") -> st.QuantizedModel:
    """Give `made` the program that is compiled already."""
    made._logits = _compiled(kind)
    return made


def trained(kind: str = "single", **options) -> st.Trainer:
    trainer = small_dlrm.trainer(kind, seed=3, **options)
    for seed in range(5):
        trainer.step(small_dlrm.batch(64, seed, kind=kind))
    return trainer


@pytest.mark.parametrize("kind", ["single", "weighted"])
def test_predictions_are_those_of_the_rows_that_the_bytes_stand_for(kind):
    trainer, batch = trained(kind), small_dlrm.batch(200, 9, kind=kind)
    before = trainer.predict(batch)
    quantized = shared(trainer.quantized(), kind)
    arrays = {
        name: dequantized(array) if name.startswith("embeddings.") else array
        for name, array in quantized.state_dict().items()
    }
    slots = {name: array for name, array in trainer.state_dict().items() if name not in arrays}
    trainer.load_state_dict({**arrays, **slots})
    found = quantized.predict(batch)
    np.testing.assert_allclose(found, trainer.predict(batch), rtol=0, atol=1e-6)
    np.testing.assert_allclose(found, before, rtol=0, atol=0.01)
    assert quantized.evaluate(batch)["auc"] == pytest.approx(trainer.evaluate(batch)["auc"])


def test_a_row_takes_its_width_and_eight_bytes():
    trainer = trained()
    rows = sum(small_dlrm.ROWS)
    assert (trainer.table_bytes, trainer.quantized().table_bytes) == (rows * 8 * 4, rows * (8 + 8))


def test_rows_that_are_behind_are_caught_up_first():
    trainer = trained(optimizer=st.optim.adam(0.05, mode="exact"))
    found = trainer.quantized().state_dict()
    assert_same_state(found, trainer.quantized().state_dict())
    exact = trainer.state_dict()["embeddings.C1.weight"]
    off = np.abs(dequantized(found["embeddings.C1.weight"]) - exact).max(axis=1)
    assert (off <= np.ptp(exact, axis=1) / 500).all()


def test_half_tables_are_quantized_too():
    trainer = trained("bfloat16")
    batch = small_dlrm.batch(200, 9)
    np.testing.assert_allclose(
        shared(trainer.quantized()).predict(batch), trainer.predict(batch), rtol=0, atol=0.01
    )


def test_a_saved_one_predicts_the_same_bits(tmp_path):
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder(), seed=3)
    trainer.fit(small_dlrm.raw_rows(100), progress=None)
    quantized = shared(trainer.quantized())
    quantized.save(tmp_path / "small", extra={"note": "mine"})
    again = st.load_predictor(tmp_path / "small")
    assert isinstance(again, st.QuantizedModel)
    shared(again)
    assert (again.steps, again.epochs) == (trainer.steps, 1)
    assert_same_state(again.state_dict(), quantized.state_dict())
    raw = small_dlrm.raw_rows(50, seed=1)
    np.testing.assert_array_equal(again.predict(raw), quantized.predict(raw))


@pytest.mark.parametrize("mode", ["lazy", "exact"])
def test_a_predictor_has_slots_only_while_rows_lag(tmp_path, mode):
    trainer = small_dlrm.trainer(
        optimizer=st.optim.adam(0.01, mode=mode), encoder=small_dlrm.encoder(), seed=3
    )
    trainer.fit(small_dlrm.raw_rows(100), progress=None)
    raw = small_dlrm.raw_rows(50, seed=1)
    trainer.save(tmp_path / "lagging")
    if mode == "exact":
        assert st.load_predictor(tmp_path / "lagging").params.lagging
    expected = trainer.predict(raw)
    trainer.params.flush()
    trainer.save(tmp_path / "whole")
    predictor = st.load_predictor(tmp_path / "whole")
    assert type(predictor) is st.Predictor and predictor.steps == trainer.steps
    assert not [name for name in predictor.state_dict() if ":" in name]
    for folder in ("lagging", "whole"):
        found = st.load_predictor(tmp_path / folder).predict(raw)
        np.testing.assert_array_equal(found, expected)


def test_a_run_in_a_precision_that_this_machine_lacks_is_quantized_in_another(tmp_path, capsys):
    trainer = trained()
    trainer.precision = "fp16"  # as if trained on a GPU
    trainer.save(tmp_path / "run")
    command = ["quantize", str(tmp_path / "run"), "--out", str(tmp_path / "small")]
    assert main(command) == 4
    assert "use --precision float32" in capsys.readouterr().err
    assert main([*command, "--precision", "float32"]) == 0
    assert st.load_predictor(tmp_path / "small").precision == "float32"


def test_training_is_refused_by_name(tmp_path):
    quantized = trained().quantized()
    for train in (quantized.step, quantized.fit):
        with pytest.raises(ConfigError, match="tables in uint8 are for prediction alone: train"):
            train(small_dlrm.batch(8))
    with pytest.raises(ConfigError, match="tables in uint8 are for prediction alone"):
        st.Trainer(quantized.model, st.optim.sgd(0.1))
    quantized.save(tmp_path / "small")
    with pytest.raises(CheckpointError, match="int8, for prediction only: `load_predictor`"):
        st.load(tmp_path / "small")


def test_a_row_that_is_not_finite_is_refused_by_name():
    trainer = trained()
    arrays = trainer.state_dict()
    arrays["embeddings.C2.weight"][4, 1] = np.nan
    trainer.load_state_dict(arrays)
    with pytest.raises(NumericalError, match="row 4 of 'embeddings.C2.weight' is not finite"):
        trainer.quantized()


def test_tables_that_were_trained_in_int8_stay_as_they_are(tmp_path):
    trainer, batch = trained("int8"), small_dlrm.batch(200, 9)
    quantized = trainer.quantized()
    assert quantized.table_bytes == trainer.table_bytes == sum(small_dlrm.ROWS) * (8 + 4)
    quantized._logits = trainer._logits
    np.testing.assert_array_equal(quantized.predict(batch), trainer.predict(batch))
    quantized.save(tmp_path / "small")
    again = st.load_predictor(tmp_path / "small")
    again._logits = trainer._logits
    np.testing.assert_array_equal(again.predict(batch), trainer.predict(batch))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint8"])
def test_a_target_without_kernels_for_such_tables_is_refused(dtype, monkeypatch):
    for target in (Target({"kind": "cuda", "arch": "sm_90"}), Target("llvm")):
        format_of(dtype).require_target(target)
    plain = Plain()
    plain.row_formats = frozenset({"float32"})
    monkeypatch.setitem(backends(), "plain", plain)
    format_of("float32").require_target(plain.target())
    with pytest.raises(ConfigError, match=f"'plain' has no kernels for tables in {dtype}: take"):
        format_of(dtype).require_target(plain.target())


def test_a_gpu_has_no_kernels_for_rows_of_int8_that_train():
    with pytest.raises(ConfigError, match="'cuda' has no kernels for tables in int8: take target"):
        format_of("int8").require_target(Target({"kind": "cuda", "arch": "sm_90"}))


def test_a_predictor_scores_by_the_averages_that_its_optimizer_keeps(tmp_path):
    trainer = small_dlrm.trainer(optimizer=st.optim.adagrad(0.1, mode="exact", average=0.5))
    trainer.fit([small_dlrm.batch(64)] * 3, progress=None)
    trainer.save(tmp_path / "run")
    rows = small_dlrm.batch(9, seed=1)
    found = st.load_predictor(tmp_path / "run").predict(rows)
    np.testing.assert_array_equal(found, trainer.predict(rows))
