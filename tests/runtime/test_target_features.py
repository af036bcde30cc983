# SPDX-License-Identifier: Apache-2.0
"""Choices by the make of the processor."""

import pytest
from tvm.target import Target

from sparsetrain.compiler.schedule.processor_families import make_of
from sparsetrain.embedding import lookup_kernel
from sparsetrain.optim.row_prefetch import PREFETCH
from sparsetrain.runtime import target_features
from sparsetrain.sparse_tensor.coalesce import SHARED_FROM

CHOICES = {"znver": "Zen", "": "others"}


@pytest.mark.parametrize(
    ("name", "choice"),
    [("znver5", "Zen"), ("sapphirerapids", "others"), ("rocketlake", "others"), (None, "others")],
)
def test_the_name_of_the_processor_decides(name, choice, monkeypatch):
    target = Target({"kind": "llvm"} if name is None else {"kind": "llvm", "mcpu": name})
    monkeypatch.setattr(target_features, "host_target", lambda: target)
    assert target_features.select_by_cpu(CHOICES) == choice


@pytest.mark.parametrize(
    "choices",
    [PREFETCH, SHARED_FROM, lookup_kernel.PREFETCH],
    ids=["rows ahead", "shared sort", "lookup"],
)
def test_every_table_ends_with_a_choice_for_all_others(choices):
    assert [*choices][-1] == ""


def test_a_target_that_names_none_is_for_this_machine(monkeypatch):
    zen = Target({"kind": "llvm", "mcpu": "znver5"})
    monkeypatch.setattr(target_features, "host_target", lambda: zen)
    assert target_features.select_by_cpu(CHOICES, Target("llvm")) == "Zen"


@pytest.mark.parametrize(("mcpu", "steadily"), [("znver5", False), ("sapphirerapids", True)])
def test_products_are_scheduled_for_the_processor_that_the_target_names(mcpu, steadily):
    assert make_of(Target({"kind": "llvm", "mcpu": mcpu})).asks_steadily == steadily
