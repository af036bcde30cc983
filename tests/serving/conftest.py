# SPDX-License-Identifier: Apache-2.0
"""Exported models, each made once."""

import shutil
from pathlib import Path

import pytest

import sparsetrain as st
from sparsetrain.serving.export import export
from sparsetrain.serving.libraries import compiler
from tests.serving.logs import BAGS, SCHEMA, trained


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> dict[str, tuple[st.Trainer, Path]]:
    """By name, a trainer and the folder that it was exported to."""
    try:
        compiler()
    except st.errors.ConfigError as error:
        pytest.skip(str(error))
    made = {}
    for name, schema in {"ids": SCHEMA, "bags": BAGS}.items():
        folder = tmp_path_factory.mktemp("exported") / name
        trainer = trained(schema)
        export(trainer, folder, cpu="native")
        made[name] = trainer, folder
    return made


@pytest.fixture
def folder(exported, tmp_path) -> Path:
    """A copy of an exported folder, to be damaged."""
    copied = tmp_path / "copied"
    shutil.copytree(exported["ids"][1], copied)
    return copied
