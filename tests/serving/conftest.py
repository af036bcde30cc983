# SPDX-License-Identifier: Apache-2.0
"""Exported models, each made once."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import sparsetrain as st
from sparsetrain.serving.export import export
from sparsetrain.serving.libraries import compiler
from tests.serving.logs import BAGS, SCHEMA, trained


@pytest.fixture(scope="session")
def exporting(tmp_path_factory) -> Callable[[st.Trainer], Path]:
    """What exports a trainer for this processor, and returns the folder."""
    try:
        compiler()
    except st.errors.ConfigError as error:
        pytest.skip(str(error))

    def run(trainer: st.Trainer) -> Path:
        folder = tmp_path_factory.mktemp("exported") / "model"
        export(trainer, folder, cpu="native")
        return folder

    return run


@pytest.fixture(scope="session")
def exported(exporting) -> dict[str, tuple[st.Trainer, Path]]:
    """By name, a trainer and the folder that it was exported to."""
    trainers = {"ids": trained(SCHEMA), "bags": trained(BAGS)}
    return {name: (trainer, exporting(trainer)) for name, trainer in trainers.items()}


@pytest.fixture
def folder(exported, tmp_path) -> Path:
    """A copy of an exported folder, to be damaged."""
    copied = tmp_path / "copied"
    shutil.copytree(exported["ids"][1], copied)
    return copied
