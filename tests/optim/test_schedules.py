# SPDX-License-Identifier: Apache-2.0
"""Schedules: their values, their product, and what is refused."""

import math

import numpy as np
import pytest

from sparsetrain import optim
from sparsetrain.errors import ConfigError
from sparsetrain.runtime import as_numpy, as_tensor

VALUES = [
    (optim.constant(0.5), {1: 0.5, 99: 0.5}),
    (optim.warmup(4), {1: 0.25, 4: 1, 9: 1}),
    (optim.step_decay(3, 0.1), {1: 1, 3: 1, 4: 0.1, 7: 0.01}),
    (optim.polynomial(10, power=2, floor=0.2), {5: 0.2 + 0.8 * 0.25, 10: 0.2, 20: 0.2}),
    (optim.cosine(10), {5: 0.5, 10: 0, 20: 0}),
    (optim.cosine(10, floor=0.1), {10: 0.1}),
    (optim.inverse_sqrt(100), {1: 1, 100: 1, 400: 0.5}),
    (0.1 * optim.warmup(2) * optim.step_decay(2, 0.5), {1: 0.05, 2: 0.1, 3: 0.05}),
    (optim.constant(2) * (lambda step: 1 / step), {4: 0.5}),
    (optim.constant(2) * 3, {4: 6}),
]


@pytest.mark.parametrize(("schedule", "expected"), VALUES)
def test_values(schedule, expected):
    assert {step: schedule(step) for step in expected} == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("schedule", [schedule for schedule, _ in VALUES if schedule(1) != 2])
def test_a_schedule_reads_back_from_plain_values(schedule):
    again = optim.Schedule.from_config(schedule.to_config())
    assert again == schedule and hash(again) == hash(schedule)


def test_a_function_of_the_users_cannot_become_plain_values():
    with pytest.raises(ConfigError, match="a custom function cannot be saved"):
        (optim.constant(1) * math.sqrt).to_config()
    with pytest.raises(ConfigError, match="schedule 'zigzag' is unknown; known: "):
        optim.Schedule.from_config([{"name": "zigzag"}])


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.warmup(0),
        lambda: optim.cosine(2.5),
        lambda: optim.cosine(True),
        lambda: optim.polynomial(3, power=-1),
        lambda: optim.constant(math.nan),
        lambda: optim.step_decay(2, "0.1"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(make):
    with pytest.raises(ConfigError, match="^schedule "):
        make()


@pytest.mark.parametrize("rate", [lambda step: 1 / step, 1.0 * optim.inverse_sqrt(1)])
def test_the_learning_rate_of_a_step_is_the_schedules_first_step_is_1(rate):
    optimizer = optim.sgd(rate)
    params = {"w": as_tensor(np.zeros(1))}
    state = optimizer.init(params)
    for step in (1, 2, 3):
        before = as_numpy(params["w"]).item()
        optimizer.apply_(params, {"w": as_tensor(np.ones(1))}, state)
        assert before - as_numpy(params["w"]).item() == pytest.approx(rate(step), rel=1e-15)
    assert state.step == 3


def test_a_schedule_that_leaves_the_numbers_is_named_with_its_step():
    optimizer = optim.sgd(lambda step: 2.0 - step)
    params = {"w": as_tensor(np.zeros(1))}
    state = optimizer.init(params)
    for _ in range(2):
        optimizer.apply_(params, {"w": as_tensor(np.ones(1))}, state)
    with pytest.raises(ConfigError, match="sgd: lr is -1.0 in step 3"):
        optimizer.apply_(params, {"w": as_tensor(np.ones(1))}, state)
