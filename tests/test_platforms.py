# SPDX-License-Identifier: Apache-2.0
"""Processors other than x86, and systems other than Linux: programs compile, nothing is missed."""

import os
import platform
import sys
from pathlib import Path

import pytest
from tvm.target import Target

import sparsetrain as st
from sparsetrain.compiler.schedule.register_tile import vector_unit
from sparsetrain.errors import ConfigError
from sparsetrain.runtime import host, library_cache
from sparsetrain.serving import libraries
from sparsetrain.system import cores, memory

ARM = {
    "Linux": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]},
    "macOS": {"kind": "llvm", "mtriple": "arm64-apple-macos", "mcpu": "apple-m1"},
}


@pytest.mark.parametrize("system", ["Linux", pytest.param("macOS", marks=pytest.mark.slow)])
def test_the_program_of_a_step_compiles_for_arm_with_its_vectors(system):
    model = st.models.DLRM(rows=[100, 50], num_dense=3, dim=8, bottom=(8,), top=(8,))
    trainer = st.Trainer(model, st.optim.adagrad(0.1), target=Target(ARM[system]))
    assert vector_unit(trainer.target).lanes("float32") == 4
    program = trainer.training_step._fused_step().program
    (code,) = program.executable().mod.imports
    text = code.inspect_source("asm")
    assert "fmla" in text and ".4s" in text


def test_another_processor_or_system_has_defaults_that_fit(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(memory, "_GROUP", tmp_path / "none")
    monkeypatch.setenv("SPARSETRAIN_CACHE", str(tmp_path / "cache"))
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda p: not str(p).startswith("/proc") and exists(p))
    assert cores.own_cores() == {*range(os.cpu_count())} and cores.default_level() == "native"
    assert memory.total_memory() is None and len(memory.aligned_empty(8)) == 8
    assert host._flags() is None and host.host_flags() == ()
    assert library_cache.locate() == tmp_path / "cache"
    with pytest.raises(ConfigError, match="'x86-64-v3' is not a level of arm64; use 'native'"):
        host.cpu_level("x86-64-v3")
    with pytest.raises(ConfigError, match="Linux libraries"):
        libraries.compiler()
