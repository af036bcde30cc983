# SPDX-License-Identifier: Apache-2.0
"""The value that a trainer holds: what it says of a loss with a scale and of one without."""

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.compiler.precision.arithmetic import Arithmetic, resumed
from sparsetrain.compiler.precision.loss_scale import LossScale, Scale
from sparsetrain.runtime.targets import host_target

RULE = LossScale(initial=1024.0, every=2)


def arithmetic(loss_scale=None):
    return Arithmetic("float32", host_target(), loss_scale)


def test_a_loss_without_a_scale_gives_a_step_nothing():
    plain = arithmetic()
    assert (dict(plain.loss.inputs), plain.loss.scale) == ({}, Scale())
    assert (plain.logged, plain.change(plain.logged)) == ({}, "")
    assert plain.counts == {"loss_scale": None}
    assert plain.arguments == plain.to_dict() == {"precision": "float32", "loss_scale": None}


def test_a_step_reads_the_scale_as_it_is_then():
    scaled = arithmetic(RULE)
    scaled.scaling.value = 1000.1  # float32 has no such number
    used = float(np.float32(1000.1))
    assert scaled.loss.inputs == {"loss_scale": used}
    assert scaled.loss.scale == Scale(1 / used, used, may_overflow=True)
    assert scaled.logged == {"loss_scale": 1000.1}
    assert scaled.arguments["loss_scale"] is RULE


def test_counts_are_restored_in_place_if_precision_and_rule_are_the_same():
    fallen = arithmetic(RULE)
    fallen.scaling.count_step(True, False)
    scaled = arithmetic(RULE)
    held = scaled.scaling
    scaled.restore({**fallen.counts, "precision": "bf16"})
    scaled.restore(arithmetic(LossScale(initial=8.0)).counts)
    scaled.restore(arithmetic().counts)
    assert held.value == 1024
    scaled.restore(fallen.counts)
    assert scaled.scaling is held and held.to_dict() == fallen.scaling.to_dict()


@pytest.mark.parametrize(
    "asked, rule", [((None, None), RULE), ((None, 8.0), 8.0), (("bf16", None), None)]
)
def test_a_saved_rule_goes_on_in_its_precision_unless_another_is_given(asked, rule):
    saved = arithmetic(RULE).to_dict() | arithmetic(RULE).counts
    assert resumed(saved, *asked) == {"precision": asked[0] or "float32", "loss_scale": rule}


def test_the_norm_is_limited_without_the_scale():
    limited = Scale.undoing(8.0, True).clipped(norm=16.0, limit=1.0)
    assert limited.norm == 2.0
    assert limited.factor == 1 / 8 * (1 / (2 + 1e-6))


@pytest.mark.parametrize("wrong", [0, -1.0, float("inf"), float("nan"), "8", None])
def test_a_scale_that_is_none_is_refused(wrong):
    with pytest.raises(st.errors.ConfigError, match="scale must be finite and above 0"):
        Scale.undoing(wrong, may_overflow=False)
