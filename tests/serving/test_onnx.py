# SPDX-License-Identifier: Apache-2.0
"""ONNX models give the logits of onnxruntime, or an error names what has no rule."""

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.errors import ConfigError
from sparsetrain.serving.onnx_model import export_onnx

pytest.importorskip("onnx")


BINS = [[-0.5], [-1.0, 0.0, 0.5]]
NUMBERS = {  # arguments of a model of four dense inputs, the last two 0 or 1
    "scaled": {},
    "binned": {"numbers": "binned", "number_bins": [*BINS, [0.5], [0.5]]},
    "binned, and scaled": {"numbers": "binned", "number_bins": BINS},
    "binned, missing": {"numbers": "binned", "number_bins": BINS, "missing_flags": True},
}


def trainer_of(dim=4, **more) -> st.Trainer:
    model = st.models.DLRM([50, 30, 50], dim, (8,), (8,), num_dense=4, **more)
    return st.Trainer(model, st.optim.sgd(0.1), target="cpu")


@pytest.mark.peers
@pytest.mark.parametrize("interaction", ["dot", "cross"])
@pytest.mark.parametrize("dim", [4, {"C2": 7, "*": 4}])
@pytest.mark.parametrize("numbers", NUMBERS)
def test_onnxruntime_gives_our_logits(interaction, dim, numbers, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    trainer = trainer_of(dim, interaction=interaction, **NUMBERS[numbers])
    rng = np.random.default_rng(0)
    export_onnx(trainer, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    dense = rng.normal(size=(70, 4)).astype(np.float32)
    dense[:, 2:] = dense[:, 2:] > 0.5
    ids = rng.integers(0, 30, (70, 3))
    (logits,) = session.run(None, {"dense": dense, "ids": ids})
    program = st.Program(trainer.model.export(), "logits", "cpu")
    ours = program(trainer.params, trainer.model.inputs(st.Batch(dense, ids)))
    np.testing.assert_allclose(logits, st.runtime.as_numpy(ours), rtol=1e-5, atol=1e-6)


REFUSED = {
    "bags": ({"pooling": "sum"}, "reads dense, rows, offsets"),
    "half tables": ({"table_dtype": "float16"}, "is stored in float16"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_rule_is_named(case, tmp_path):
    more, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        export_onnx(trainer_of(**more), tmp_path / "model.onnx")
    assert not [*tmp_path.iterdir()]
