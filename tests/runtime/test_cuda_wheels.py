# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's wheels stand in for a CUDA toolkit, and only where there is none."""

import os
import shutil
import sys

import pytest

from sparsetrain.runtime import cuda_wheels


@pytest.fixture
def wheels(monkeypatch, tmp_path):
    """The folder of an nvcc that a wheel brought; nothing else is on PATH."""
    found = program(tmp_path / "site" / "nvidia" / "cu13" / "bin")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return found


def program(folder):
    folder.mkdir(parents=True)
    (folder / "nvcc").touch(mode=0o755)
    return folder


def test_an_nvcc_of_a_wheel_is_found_by_name(wheels):
    assert shutil.which("nvcc") is None
    cuda_wheels.use()
    assert shutil.which("nvcc") == str(wheels / "nvcc")


def test_an_nvcc_of_the_system_comes_first(wheels, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(program(tmp_path / "system")))
    cuda_wheels.use()
    assert os.environ["PATH"] == str(tmp_path / "system")


def test_without_wheels_nothing_is_changed(wheels, monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_wheels, "folder", lambda: None)
    cuda_wheels.use()
    assert os.environ["PATH"] == str(tmp_path)
