# SPDX-License-Identifier: Apache-2.0
"""Every distinct kernel is scheduled once, and as TVM's own pass would."""

import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir.dlight import ApplyDefaultSchedule

from sparsetrain.backends.cpu.schedule import RULES
from sparsetrain.compiler.schedule import rule as schedule_rules
from sparsetrain.compiler.schedule.matmul import Matmul
from sparsetrain.compiler.schedule.rule import ApplyRules
from tests.compiler.schedule.relax_programs import TARGETS, function, run_passes

op = relax.op


class Counting(Matmul):
    """The rule for products, which counts how often it is asked."""

    asked = 0

    def apply(self, func, target, tunable):
        """See `CpuRule`."""
        self.asked += 1
        return super().apply(func, target, tunable)


def kernels(columns: int = 8) -> tvm.IRModule:
    """One product, not scheduled yet."""
    module = function({"x": ("b", 24), "w": (24, columns)}, op.matmul)
    return run_passes(module, until="ApplyRules")


def scheduled(rules, module, target: str = "host"):
    with TARGETS[target]:
        return rules(module)


def test_an_equal_kernel_is_not_scheduled_again():
    rule = Counting()
    first, again = (scheduled(ApplyRules(rule), kernels()) for _ in range(2))
    assert rule.asked == 1
    assert tvm_ffi.structural_equal(first, again)


@pytest.mark.parametrize("target, columns", [("plain", 8), ("host", 16)])
def test_another_kernel_or_target_is(target, columns):
    rule = Counting()
    scheduled(ApplyRules(rule), kernels())
    scheduled(ApplyRules(rule), kernels(columns), target)
    assert rule.asked == 2


def test_the_kernels_used_last_are_remembered(monkeypatch):
    monkeypatch.setattr(schedule_rules, "MOST_KERNELS", 2)
    rule = Counting()
    for columns in (8, 16, 8, 24, 8, 16):
        scheduled(ApplyRules(rule), kernels(columns))
    assert rule.asked == 4  # 16 was forgotten for 24


@pytest.mark.parametrize("target", TARGETS)
def test_a_schedule_is_that_of_tvms_own_pass(target):
    module = function(
        {"x": ("b", 24), "w": (24, 40), "bias": (40,)},
        lambda x, w, bias: op.mean(op.nn.relu(op.add(op.matmul(x, w), bias)), axis=1),
    )
    before = run_passes(module, until="ApplyRules", target=target)
    text = before.script()
    found, expected = (
        scheduled(rules(*RULES), before.clone(), target)
        for rules in (ApplyRules, ApplyDefaultSchedule)
    )
    assert tvm_ffi.structural_equal(found, expected)  # but for names
    assert expected.script() != text


def test_the_module_that_is_given_stays_as_it_is():
    module = kernels()
    text = module.script()
    assert scheduled(ApplyRules(Counting()), module).script() != text
    assert module.script() == text


@pytest.mark.parametrize("operator", [op.mean, op.negative])
def test_no_block_is_without_a_loop_since_tvm_would_raise_an_error(operator):
    shape = ("b", 3) if operator is op.mean else ()
    module = run_passes(function({"x": shape}, operator), until="ApplyRules")
    (kernel,) = (f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    schedule, blocks = schedule_rules._normalized(kernel)
    assert blocks
    assert all(schedule.get_loops(info.block_rv) for info in blocks)
