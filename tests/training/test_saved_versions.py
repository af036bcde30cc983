# SPDX-License-Identifier: Apache-2.0
"""A folder of the one format is read as it was; one of another is refused by its number."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.checkpoint import manifest as manifest_module
from sparsetrain.errors import CheckpointError

GOLDEN = Path(__file__).parents[1] / "golden" / "run"
BATCH = ([[0.5, -1], [1, 2], [0, 0.25]], [[0, 3], [4, 1], [0, 0]], [1, 0, 1])
# What the model predicted when the folder was written, after three steps.
PREDICTED = [0.8324712, 0.8403961, 0.8403961]


def test_a_folder_that_was_written_long_ago_is_read():
    trainer = st.load(GOLDEN, target="llvm")
    assert (trainer.steps, trainer.seed, trainer.optimizer.formula.name) == (3, 7, "adagrad")
    batch = st.data.Batch(*BATCH)
    np.testing.assert_allclose(trainer.predict(batch), PREDICTED, rtol=1e-6)


@pytest.mark.slow
def test_a_folder_that_was_written_long_ago_goes_on():
    trainer = st.load(GOLDEN, target="llvm")
    trainer.step(st.data.Batch(*BATCH))
    assert trainer.steps == 4


@pytest.mark.parametrize("version", [0, 2, "1", True, None])
def test_a_folder_of_another_version_is_refused_by_number(tmp_path, version):
    folder = shutil.copytree(GOLDEN, tmp_path / "run")
    body = json.loads((folder / "manifest.json").read_text())
    body.pop("crc32")
    body["version"] = version
    body["crc32"] = manifest_module._checksum(body)
    (folder / "manifest.json").write_text(json.dumps(body))
    with pytest.raises(CheckpointError) as refused:
        st.load(folder)
    assert f"format version {version!r} is unknown, this sparsetrain reads version 1: use" in str(
        refused.value
    )
