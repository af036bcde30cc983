# SPDX-License-Identifier: Apache-2.0
"""A delta and an older export make the very bytes of the newer one, or are refused."""

from pathlib import Path

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.errors import CheckpointError
from sparsetrain.serving.delta import apply, write_delta
from sparsetrain.serving.export import export
from sparsetrain.serving.model import Model
from tests.serving.logs import SCHEMA, day_after, frame, rows_of


@pytest.fixture(scope="module")
def versions(exported, tmp_path_factory) -> tuple[st.Trainer, Path, Path, Path]:
    """A newer model that knows more values, the older and the newer export, and the delta."""
    trainer, folder = exported["ids"]
    place = tmp_path_factory.mktemp("versions")
    newer = day_after(trainer, SCHEMA)
    export(newer, place / "newer", cpu="native")
    write_delta(folder, place / "newer", place / "delta")
    return newer, folder, place / "newer", place / "delta"


def test_a_delta_makes_the_bytes_of_the_newer_export(versions, tmp_path):
    trainer, folder, newer, delta = versions
    apply(folder, delta, tmp_path / "made")
    for path in newer.iterdir():
        assert (tmp_path / "made" / path.name).read_bytes() == path.read_bytes()
    assert (tmp_path / "made" / "libtvm_ffi.so").samefile(folder / "libtvm_ffi.so")
    columns = rows_of(20, 6)
    expected = trainer.predict(frame(columns, SCHEMA))
    np.testing.assert_array_equal(Model(tmp_path / "made").predict(columns), expected)


def test_a_damaged_delta_is_refused_and_nothing_is_left(versions, tmp_path):
    _, folder, _, delta = versions
    for path in sorted(delta.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CheckpointError):
            apply(folder, delta, tmp_path / "made")
        path.write_bytes(whole)
    assert not [*tmp_path.iterdir()]


def test_a_delta_for_another_export_is_refused(versions, tmp_path):
    _, _, newer, delta = versions
    with pytest.raises(CheckpointError, match="deltas follow one another"):
        apply(newer, delta, tmp_path / "made")
