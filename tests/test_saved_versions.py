# SPDX-License-Identifier: Apache-2.0
"""Folders that earlier versions wrote are read; a newer one is refused by its number."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.checkpoint import manifest as manifest_module
from sparsetrain.errors import CheckpointError

GOLDEN = Path(__file__).parent / "golden"
BATCH = ([[0.5, -1], [1, 2], [0, 0.25]], [[0, 3], [4, 1], [0, 0]], [1, 0, 1])
# What the model predicted when the folder was written, after three steps.
PREDICTED = [0.8324712, 0.8403961, 0.8403961]
VERSIONS = ("version1", "version2")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_folder_of_an_earlier_version_is_read(version):
    trainer = st.load(GOLDEN / version, target="llvm")
    assert (trainer.steps, trainer.seed, trainer.optimizer.formula.name) == (3, 7, "adagrad")
    batch = st.data.Batch(*BATCH)
    np.testing.assert_allclose(trainer.predict(batch), PREDICTED, rtol=1e-6)
    trainer.step(batch)


def test_all_versions_hold_the_same_bits():
    first, *others = (st.load(GOLDEN / version).state_dict() for version in VERSIONS)
    for other in others:
        assert other.keys() == first.keys()
        assert all(other[name].tobytes() == array.tobytes() for name, array in first.items())


def test_a_folder_of_a_newer_version_is_refused_by_number(tmp_path):
    folder = shutil.copytree(GOLDEN / "version2", tmp_path / "run")
    body = json.loads((folder / "manifest.json").read_text())
    body.pop("crc32")
    body["version"] = 3
    body["crc32"] = manifest_module._checksum(body)
    (folder / "manifest.json").write_text(json.dumps(body))
    with pytest.raises(
        CheckpointError, match="format version 3 is unknown, this sparsetrain reads"
    ):
        st.load(folder)
