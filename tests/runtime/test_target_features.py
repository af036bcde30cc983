# SPDX-License-Identifier: Apache-2.0
"""Choices by the make of the processor."""

import pytest
from tvm.target import Target

from sparsetrain.runtime import host

CHOICES = {"znver": "Zen", "": "others"}


@pytest.mark.parametrize(
    ("name", "choice"),
    [("znver5", "Zen"), ("sapphirerapids", "others"), ("rocketlake", "others"), (None, "others")],
)
def test_the_name_of_the_processor_decides(name, choice, monkeypatch):
    target = Target({"kind": "llvm"} if name is None else {"kind": "llvm", "mcpu": name})
    monkeypatch.setattr(host, "host_target", lambda: target)
    assert host.select_by_cpu(CHOICES) == choice


def test_a_target_that_names_none_is_for_this_machine(monkeypatch):
    zen = Target({"kind": "llvm", "mcpu": "znver5"})
    monkeypatch.setattr(host, "host_target", lambda: zen)
    assert host.select_by_cpu(CHOICES, Target("llvm")) == "Zen"
