# SPDX-License-Identifier: Apache-2.0
"""Scaled losses: the same updates, a step left out per overflow, bits that a resumed run keeps."""

import json

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.compiler import program
from sparsetrain.compiler.precision import FLOAT16, LossScale, Scaling, scaling_for
from sparsetrain.errors import CheckpointError, ConfigError, NumericalError
from sparsetrain.runtime import compiling
from sparsetrain.runtime.tensors import editable_numpy
from tests.helpers import slow_except

ROWS = [50, 20]


def trainer(optimizer=None, **options):
    model = st.models.DLRM(rows=ROWS, dim=8, bottom=(16,), top=(16,), num_dense=13)
    return st.Trainer(model, optimizer=optimizer or st.optim.adagrad(0.05), **options)


def batch(number=0, size=32, largest=1.0):
    random = np.random.default_rng(number)
    dense = random.standard_normal((size, 13), dtype=np.float32)
    labels = (dense[:, 1] > 0).astype(np.float32)
    # One label is wrong whatever the score is, so the gradient is as large as the features.
    dense[:2, 0], labels[:2] = largest, [0, 1]
    return st.data.Batch(dense=dense, ids=random.integers(0, 20, (size, 2)), labels=labels)


# Its gradients are finite; times a scale from 2^20 they are not.
HUGE = batch(99, largest=1e35)
LARGE = 2.0**24


def assert_same_bits(left, right):
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)


# What a scale must not change: how gradients are clipped, summed, caught up, and who updates.
WAYS = {
    "adagrad": (st.optim.adagrad(0.05), {}),
    "clipped by norm": (st.optim.sgd(0.1, clip_norm=0.01), {}),
    "clipped by value": (st.optim.sgd(0.1, clip_value=1e-3), {}),
    "exact": (st.optim.adam(0.01, mode="exact"), {}),
    "accumulated": (st.optim.adagrad(0.05), {"accumulate": 3}),
    "accumulated, its norm clipped": (st.optim.adagrad(0.05, clip_norm=0.01), {"accumulate": 2}),
}
QUICK = ("clipped by norm", "exact")
EACH_WAY = pytest.mark.parametrize("way", slow_except(QUICK, WAYS))


@EACH_WAY
def test_a_power_of_two_changes_no_bit_and_an_overflow_leaves_out_exactly_its_step(way):
    optimizer, options = WAYS[way]
    plain, scaled = (trainer(optimizer, loss_scale=s, **options) for s in (None, LossScale(LARGE)))
    for number in range(4):
        if number == 2:
            scaled.step(HUGE)
            assert scaled.applied.overflowed
            assert "is not finite" in scaled.applied.skipped
        assert float(plain.step(batch(number))) == float(scaled.step(batch(number)))
        assert scaled.applied.skipped is None
        assert scaled.applied.norm == plain.applied.norm
    assert_same_bits(plain.state_dict(), scaled.state_dict())
    assert (scaled.steps, scaled.state.skipped, scaled.scaling.overflows) == (5, 1, 1)
    assert scaled.scaling.value == LARGE / 2


def test_no_scale_compiles_anything(monkeypatch):
    scaled = trainer(loss_scale=LossScale(initial=4.0, every=1))
    scaled.step(batch())
    for module in (compiling, program):
        monkeypatch.setattr(module, "compile_relax", None)
    for _ in range(3):
        scaled.step(batch())
    assert scaled.scaling.value == 64


def test_the_program_takes_the_scale_and_returns_the_loss_as_it_is():
    model = st.models.DLRM(rows=ROWS, dim=8, bottom=(16,), top=(16,), num_dense=13)
    params, inputs = model.initialize(0), model.inputs(batch())
    plain = st.value_and_grad(model.export(), "loss")
    scaled = st.value_and_grad(model.export(), "loss", scaled=True)
    assert scaled.gradient.arguments == ("loss_scale", *plain.gradient.arguments)
    loss, gradients = plain(params, inputs)
    for scale in (1.0, 8.0):
        again, larger = scaled(params, {**inputs, "loss_scale": np.float32(scale)})
        assert float(again.numpy()) == float(loss.numpy())
        for name, gradient in gradients.items():
            one, other = (getattr(g, "values", g).numpy() for g in (gradient, larger[name]))
            np.testing.assert_array_equal(scale * one, other)


def test_the_scale_doubles_after_good_steps_in_a_row_and_keeps_its_bounds():
    scaling = Scaling(LossScale(initial=4.0, every=3, least=2.0, most=16.0))
    seen = []
    for overflowed in (0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0):
        scaling.count_step(bool(overflowed), not overflowed)
        seen.append(scaling.value)
    assert seen == [4, 4, 2, 2, 2, 4, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8, 16, 16, 16, 16]
    assert scaling.overflows == 3


def test_a_step_left_out_for_another_reason_does_not_count():
    scaling = Scaling(LossScale(initial=4.0, every=1))
    scaling.count_step(False, False)
    assert (scaling.value, scaling.good) == (4, 0)


@pytest.mark.parametrize("scale", [LARGE, LossScale(initial=LARGE, least=LARGE)])
def test_an_overflow_that_no_smaller_scale_can_help_is_an_error_as_ever(scale):
    scaled = trainer(loss_scale=scale)
    before = scaled.state_dict()
    with pytest.raises(NumericalError, match="in step 1, with the loss scaled by 16,777,216: noth"):
        scaled.step(HUGE)
    assert_same_bits(before, scaled.state_dict())


def test_a_loss_that_is_not_finite_is_not_the_scale_s_fault():
    scaled = trainer(loss_scale="dynamic")
    with editable_numpy(scaled.params["top.layers.1.bias"]) as bias:
        bias[...] = np.inf
    with pytest.raises(NumericalError, match="the loss is"):
        scaled.step(batch())
    assert scaled.scaling.value == 65536


def test_a_resumed_run_has_the_bits_and_the_scales_of_an_uncut_one(tmp_path):
    rule = LossScale(initial=LARGE, every=3)
    batches = [HUGE if number in (1, 6) else batch(number) for number in range(10)]

    def run(folder, stops):
        first = trainer(st.optim.adam(0.01, mode="exact"), loss_scale=rule)
        left = iter(range(stops))
        first.fit(
            batches, run=st.Run(folder, log_every=1), progress=None,
            stop=lambda: next(left, None) is None,
        )  # fmt: skip
        again = st.load(folder)
        again.fit(batches, run=st.Run(folder, log_every=1), resume=True, progress=None)
        return again

    cut, uncut = run(tmp_path / "cut", 5), run(tmp_path / "uncut", 100)
    assert cut.scaling.to_dict() == uncut.scaling.to_dict()
    assert (cut.scaling.overflows, cut.state.skipped) == (2, 2)
    assert_same_bits(cut.state_dict(), uncut.state_dict())
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("cut", "uncut")]
    scales = [[json.loads(line)["loss_scale"] for line in log] for log in logs]
    assert scales[0] == scales[1] and len(set(scales[0])) > 1


def test_a_saved_scale_goes_on_in_its_precision_alone(tmp_path):
    scaled = trainer(loss_scale=LossScale(LARGE))
    scaled.step(HUGE)
    scaled.save(tmp_path / "run")
    assert st.load(tmp_path / "run").scaling.value == LARGE / 2
    fresh = st.load(tmp_path / "run", loss_scale=512)
    assert (fresh.scaling.value, fresh.scaling.overflows) == (512, 0)


def test_loading_refuses_a_scale_that_is_none(tmp_path):
    trainer(loss_scale=512).save(tmp_path / "run")
    for wrong in (0, False, ""):
        with pytest.raises(CheckpointError, match="loss_scale must be from"):
            st.load(tmp_path / "run", loss_scale=wrong)


def test_a_kept_scale_that_is_none_is_refused():
    kept = Scaling(LossScale()).to_dict()
    for wrong in (0, float("nan"), "1"):
        with pytest.raises(ConfigError, match="loss scale: value must be from"):
            Scaling.from_dict({**kept, "value": wrong})


class Told:
    """A progress that keeps what it is told."""

    def __init__(self):
        self.notes = []

    def start(self, total, title): ...

    def advance(self, rows, loss): ...

    def finish(self): ...

    def note(self, text):
        self.notes.append(text)


def test_a_change_of_the_scale_is_told():
    told = Told()
    rule = LossScale(initial=LARGE, every=2)
    trainer(loss_scale=rule).fit([batch(), HUGE, batch(), batch()], progress=told)
    fallen, risen = told.notes
    assert fallen.startswith("step 2: a gradient overflowed, nothing was updated")
    assert fallen.endswith("loss scale 16,777,216 becomes 8,388,608")
    assert risen == "step 4: no overflow for long: loss scale 8,388,608 becomes 16,777,216"


def test_only_float16_is_scaled_unasked():
    assert scaling_for(None, None) is None
    assert scaling_for(None, FLOAT16).rule == LossScale()
    assert scaling_for(None, FLOAT16._replace(dtype="bfloat16")) is None
    for eight in (8, np.float32(8), np.int64(8)):
        assert scaling_for(eight, None).rule == LossScale(initial=8.0, every=None)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), True, "static", 1e38])
def test_a_scale_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigError, match="loss_scale must be from"):
        trainer(loss_scale=wrong)


@pytest.mark.parametrize(
    "wrong", [{"initial": 0}, {"every": 0}, {"every": 1.5}, {"least": 8.0, "initial": 4.0}]
)
def test_a_rule_with_a_wrong_number_is_refused(wrong):
    with pytest.raises(ConfigError, match="loss scale: "):
        LossScale(**wrong)
