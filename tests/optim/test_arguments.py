# SPDX-License-Identifier: Apache-2.0
"""Options and groups: each is honoured or refused, and a run's manifest brings them back."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain import optim
from sparsetrain.errors import ConfigError
from sparsetrain.optim import OPTIMIZERS, ParamGroup
from sparsetrain.optim.arguments import from_config, to_config
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse
from tests.optim.formulas import Run
from tests.optim.oracle import Table
from tests.small_dlrm import assert_same_state

EVERY = ["mode", "clip_value", "clip_norm", "on_nonfinite", "groups"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_option_that_a_formula_does_not_have_is_refused_by_name_with_those_it_has(name):
    with pytest.raises(ConfigError) as raised:
        OPTIMIZERS[name](0.1, amsgrad=True)
    message = str(raised.value)
    assert message.startswith(f"{name} has no option 'amsgrad'; its options are lr, ")
    assert all(option in message for option in EVERY)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.ftrl(0.1, weight_decay=0.1), "ftrl has no option 'weight_decay'"),
        (lambda: optim.adamw(0.1, decoupled=False), "adamw has no option 'decoupled'"),
        (lambda: optim.sgd(0.1, momentum=0.9), "sgd has no option 'momentum'"),
        (lambda: optim.adam(0.1, beta1=1.0), "adam: beta1 must be from 0 to below 1, not 1.0"),
        (lambda: optim.adam(0.1, eps=0), "adam: eps must be above 0, not 0"),
        (lambda: optim.rmsprop(0.1, alpha=-0.1), "rmsprop: alpha must be from 0 to below 1"),
        (lambda: optim.momentum(0.1, momentum=2), "momentum: momentum must be from 0 to below 1"),
        (lambda: optim.ftrl(0.1, beta=0), "ftrl: one of beta, initial and l2 must be above 0"),
        (lambda: optim.ftrl(0.0), "ftrl: .*lr is 0.0 in step 1; it must stay above 0"),
        (
            lambda: optim.adam(0.1, mode="sparse"),
            "adam: mode must be one of lazy, exact, closed, dense",
        ),
        (
            lambda: optim.adam(0.1, max_replayed_steps=9),
            "adam: max_replayed_steps needs mode 'exact', but the mode is 'lazy'",
        ),
        (
            lambda: optim.adam(0.1, mode="exact", max_replayed_steps=0),
            "adam: max_replayed_steps must be a whole number from 1",
        ),
        (
            lambda: optim.adam(0.1, mode="exact", max_replayed_steps=9, weight_decay=0.1),
            "adam: max_replayed_steps does not work with coupled weight_decay",
        ),
        (lambda: optim.sgd(0.1, weight_decay=-1), "sgd: weight_decay must be finite and 0 or more"),
        (lambda: optim.adagrad(0.1, eps=0), "adagrad: one of eps and initial must be above 0"),
        (lambda: optim.rowwise_adagrad(0.1, eps=0), "rowwise_adagrad: one of eps and initial must"),
        (
            lambda: optim.adagrad(0.1, eps=1e-60),
            "adagrad: noop_on_zero_grad is 'always', but .* or makes them",
        ),
        (lambda: optim.sgd(1e39), "sgd: noop_on_zero_grad is 'always', but with these numbers"),
        (
            lambda: optim.adamw(0.1, weight_decay=optim.warmup(9)),
            "adamw: weight_decay must be a number",
        ),
        (lambda: optim.adagrad(0.1, initial=-1), "adagrad: initial must be finite and 0 or more"),
        (lambda: optim.ftrl(0.1, initial="1"), "ftrl: initial must be finite and 0 or more"),
        (
            lambda: optim.sgd(lambda step: 1 / (step - 1)),
            "a function of the step fails in step 1: ",
        ),
        (lambda: optim.sgd(lambda step: None), "a function of the step fails in step 1: "),
        (lambda: optim.sgd(0.1, decoupled="no"), "sgd: decoupled must be True or False, not 'no'"),
        (lambda: optim.sgd(0.1, clip_value=0), "sgd: clip_value must be above 0"),
        (lambda: optim.sgd(0.1, clip_value="1"), "sgd: clip_value must be above 0, not '1'"),
        (lambda: optim.sgd(0.1, clip_norm=True), "sgd: clip_norm must be above 0, not True"),
        (lambda: optim.sgd(0.1, groups=["a"]), "sgd: groups must be a list of ParamGroup"),
        (
            lambda: optim.sgd(0.1, groups=ParamGroup("a")),
            "sgd: groups must be a list of ParamGroup",
        ),
        (lambda: ParamGroup(3), "group 3: match must be a name"),
        (lambda: ParamGroup("a", scale="1"), "group 'a': scale must be 0 or more"),
        (lambda: optim.sgd(0.1, clip_norm=math.inf), "sgd: clip_norm must be above 0, not inf"),
        (lambda: optim.sgd(0.1, on_nonfinite="warn"), "sgd: on_nonfinite must be one of"),
        (lambda: ParamGroup("a", mode="sparse"), "group 'a': mode must be in"),
        (lambda: ParamGroup("a", scale=-1), "group 'a': scale must be 0 or more"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_formula_of_the_users_without_slot_decay_has_no_limit_of_replayed_steps():
    formula = optim.Formula("mine", lambda w, g, s, h: (w - h.lr * g, s))
    with pytest.raises(
        ConfigError,
        match="mine: max_replayed_steps needs a formula with slot_decay",
    ):
        optim.Optimizer(formula, {"lr": 0.1}, mode="exact", max_replayed_steps=5)
    with pytest.raises(ConfigError, match="mine: decoupled weight_decay needs .* 'lr'"):
        optim.Optimizer(formula._replace(step=lambda w, g, s, h: (w - g, s)), {}, **DECOUPLED)


@pytest.mark.parametrize(
    ("noop_on_zero_grad", "step"),
    [
        ("always", lambda w, g, s, h: (w - h.lr * (g + w), s)),
        ("always", lambda w, g, s, h: (w - h.lr * s[0], (s[0] + g,))),  # slots that are not initial
        ("always", lambda w, g, s, h: (w - g / s[0], s)),
        ("untouched", lambda w, g, s, h: (w, (s[0] + 1,))),
    ],
)
def test_a_formula_that_a_gradient_of_0_changes_against_its_word_is_refused(
    noop_on_zero_grad, step
):
    formula = optim.Formula("mine", step, (optim.Slot("s"),), noop_on_zero_grad=noop_on_zero_grad)
    with pytest.raises(
        ConfigError,
        match=f"mine: noop_on_zero_grad is '{noop_on_zero_grad}', but .* gradient of 0 changes",
    ):
        optim.Optimizer(formula, {"lr": 0.1})


DECOUPLED = {"weight_decay": 0.1, "decoupled": True}


@pytest.mark.parametrize("sparse", [False, True])
def test_coupled_decay_joins_the_gradient_and_decoupled_decay_shrinks_the_weight(sparse):
    w, g = np.array([[2.0, -1.0]]), np.array([[0.5, 0.25]])
    gradient = RowSparse.from_numpy([0], g, 1) if sparse else g
    coupled = Run(optim.momentum(0.1, weight_decay=0.01), w).apply(gradient)
    np.testing.assert_allclose(coupled.arrays()["velocity"], g + 0.01 * w, rtol=1e-15)
    decoupled = Run(optim.momentum(0.1, **DECOUPLED), w).apply(gradient)
    np.testing.assert_allclose(decoupled.arrays()["w"], w * (1 - 0.1 * 0.1) - 0.1 * g, rtol=1e-15)
    np.testing.assert_allclose(decoupled.arrays()["velocity"], g)


def params():
    return {n: as_tensor(np.ones(3)) for n in ("bottom.bias", "top.bias", "top.weight")}


def test_groups_change_rate_and_decay_by_name_and_the_last_that_matches_wins():
    groups = [
        ParamGroup("top.*", scale=0.5),
        ParamGroup("*.bias", lr=0.01),
        ParamGroup("top.bias", lr=lambda s: s),
    ]
    optimizer = optim.sgd(0.1, groups=groups)
    tensors = params()
    gradients = {name: as_tensor(np.ones(3)) for name in tensors}
    optimizer.apply_(tensors, gradients, optimizer.init(tensors))
    moved = {name: 1 - as_numpy(tensor)[0] for name, tensor in tensors.items()}
    assert moved == pytest.approx({"bottom.bias": 0.01, "top.bias": 1.0, "top.weight": 0.05})


def test_a_group_scales_a_schedule_and_keeps_it():
    tensors = params()
    scaled = optim.sgd(1.0 * optim.warmup(4), groups=[ParamGroup("top.*", scale=0.5)])
    scaled.apply_(tensors, {n: as_tensor(np.ones(3)) for n in tensors}, scaled.init(tensors))
    assert as_numpy(tensors["top.weight"])[0] == 1 - 0.25 / 2
    assert as_numpy(tensors["bottom.bias"])[0] == 1 - 0.25


def test_a_group_that_matches_nothing_is_refused_with_the_nearest_name():
    optimizer = optim.sgd(0.1, groups=[ParamGroup("top.wieght", lr=1)])
    with pytest.raises(ConfigError, match="group 'top.wieght' matches no .* mean 'top.weight'"):
        optimizer.init(params())


def test_another_optimizer_may_go_on_with_a_state_if_the_slots_are_the_same():
    tensors = params()
    gradients = {name: as_tensor(np.ones(3)) for name in tensors}
    state = optim.sgd(0.1).init(tensors)
    optim.sgd(0.1).apply_(tensors, gradients, state)
    optim.sgd(0.2).apply_(tensors, gradients, state)
    assert as_numpy(tensors["top.bias"])[0] == pytest.approx(0.7)
    matrices = {"t": as_tensor(np.ones((3, 2)))}
    lazy = optim.adam(0.1).init(matrices)
    with pytest.raises(ConfigError, match="state was made for different modes or groups"):
        optim.adam(0.1, mode="exact").flush_(matrices, lazy)
    with pytest.raises(ConfigError, match="use the state from this optimizer's init"):
        optim.sgd(0.1).apply_(tensors, gradients, dict(state))


GROUPS = (ParamGroup("a*", lr=0.5 * optim.warmup(3), mode="exact"), ParamGroup("b", scale=0.1))
SAVED = [
    optim.sgd(0.1),
    optim.nesterov(0.1, momentum=0.5),
    optim.adam(0.1 * optim.warmup(5) * optim.cosine(50), mode="exact", max_replayed_steps=7),
    optim.adamw(0.1, weight_decay=0.0, clip_norm=1.0, on_nonfinite="skip"),
    optim.ftrl(0.1, l1=0.5, groups=GROUPS[1:]),
    optim.ftrl(0.1, beta=0.0, initial=0.1),
    optim.adagrad(0.1, initial=0.5),
    optim.rmsprop(0.1, clip_value=2.0, groups=GROUPS),
    optim.rowwise_adagrad(0.1, initial=np.float32(0.1), weight_decay=np.float32(0.1)),
    optim.ftrl(0.1, initial=np.float32(0.1), clip_norm=np.float32(1), clip_value=np.float32(1)),
    optim.sgd(0.1, groups=[ParamGroup("b", scale=np.float32(2), weight_decay=np.float32(0.1))]),
]


# Named like ours, but not made by our constructors.
OWN = optim.Optimizer(optim.adagrad(0.1).formula._replace(step=lambda w, g, s, h: (w - g, s)), {})
OWN_SLOT = optim.Optimizer(
    optim.adagrad(0.1).formula._replace(name="sgd"), {"lr": 0.1, "eps": 1e-9}
)


@pytest.mark.parametrize("optimizer", SAVED, ids=lambda o: o.formula.name)
def test_an_optimizer_reads_back_from_plain_values(optimizer):
    config = json.loads(json.dumps(to_config(optimizer)))
    assert from_config(config) == optimizer


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (to_config(optim.sgd(lambda step: 0.1)), "a custom function: pass load"),
        (to_config(OWN), "a custom formula named 'adagrad': pass load"),
        (to_config(OWN_SLOT), "a custom formula named 'sgd': pass load"),
        ({"name": "lamb", "hyper": {}}, "'lamb', which this package does not have"),
        ({"name": "sgd", "hyper": {"lr": 0.1}, "options": {"exec": "x"}}, "option 'exec' is unkn"),
    ],
)
def test_what_is_not_of_this_package_needs_the_optimizer_itself(config, message):
    with pytest.raises(ConfigError, match=message):
        from_config(config)


def test_the_rule_in_the_guide_trains_in_every_mode():
    page = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text()
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "Formula(" in b)
    assert len(block.strip().splitlines()) <= 12
    names: dict = {}
    exec(block, names)
    exact, dense = (
        Table(replace(names["optimizer"], mode=mode), 50, 3).train(20, 10).arrays()
        for mode in ("exact", "dense")
    )
    assert_same_state(exact, dense)


@pytest.mark.parametrize("name", ["keep", "weight_decay", "clip", "now"])
def test_a_number_whose_name_is_taken_is_refused(name):
    formula = optim.Formula("mine", lambda w, g, s, h: (w - g, s))
    with pytest.raises(ConfigError, match=f"mine: the number '{name}' needs another name"):
        optim.Optimizer(formula, {name: 0.1})


def test_a_slot_whose_name_is_taken_is_refused():
    formula = optim.Formula("mine", lambda w, g, s, h: (w - g, s), (optim.Slot("last"),))
    with pytest.raises(ConfigError, match="mine: the slot 'last' needs another name"):
        optim.Optimizer(formula, {})


def test_a_state_shows_its_step_and_not_its_arrays():
    state = st.optim.adam(0.01).init({"w": st.runtime.zeros((2, 3), "float32")})
    assert repr(state) == "<State: step 0, slots of 1 parameters>"
