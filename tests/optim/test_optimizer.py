# SPDX-License-Identifier: Apache-2.0
"""The optimizer as a value: its numbers, its state, parameters of every shape, and its refusals."""

import copy
import pickle
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from sparsetrain import optim
from sparsetrain.errors import ConfigError, NumericalError, ResourceError
from sparsetrain.optim import Formula, Optimizer, Slot, sqrt
from sparsetrain.runtime import as_numpy, as_tensor, tensors
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_same_bits, slow_except
from tests.optim.formulas import OPTIMIZERS, Run, in_numpy

SHAPES = [(), (2, 3, 4), (3, 1), (1, 3000)]
QUICK = [*((name, (2, 3, 4)) for name in OPTIMIZERS), *(("mixed", shape) for shape in SHAPES)]


@pytest.mark.parametrize(("name", "shape"), slow_except(QUICK, product(OPTIMIZERS, SHAPES)))
def test_dense_parameters_of_any_shape_follow_the_formula(name, shape):
    weight, gradient = np.random.default_rng(0).standard_normal((2, *shape))
    rows = (-1, shape[-1]) if len(shape) > 1 else (-1, 1)
    run = Run(OPTIMIZERS[name], weight)
    slots = {
        slot.name: run.arrays()[slot.name].reshape(rows if slot.per == "element" else -1)
        for slot in run.optimizer.formula.slots
    }
    expected, _ = in_numpy(run.optimizer, weight.reshape(rows), gradient.reshape(rows), slots)
    found = run.apply(gradient).arrays()["w"]
    assert found.shape == shape
    np.testing.assert_allclose(found.reshape(rows), expected, rtol=1e-13)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_without_elements_is_left_as_it_is(name):
    assert Run(OPTIMIZERS[name], np.ones((0, 4))).apply(np.ones((0, 4))).arrays()["w"].size == 0


def test_a_bias_under_a_rowwise_formula_has_rows_of_one_element():
    rowwise = Run(optim.rowwise_adagrad(0.1), np.arange(4.0)).apply(np.arange(4.0))
    plain = Run(optim.adagrad(0.1, eps=1e-8), np.arange(4.0)).apply(np.arange(4.0))
    assert_same_bits(rowwise.arrays()["w"], plain.arrays()["w"])


def test_slots_begin_with_their_initial_value_and_have_one_number_per_element_or_row():
    state = OPTIMIZERS["mixed"].init({"t": as_tensor(np.ones((4, 3), "f4"))})
    assert_same_bits(state["t"]["mean"], np.zeros((4, 3), "f4"))
    assert_same_bits(state["t"]["total"], np.full(4, 0.5, "f4"))


def test_parameters_without_a_gradient_are_left_alone():
    params = {name: as_tensor(np.ones(3, "f4")) for name in "ab"}
    state = OPTIMIZERS["sgd"].init(params)
    OPTIMIZERS["sgd"].apply_(params, {"a": as_tensor(np.ones(3, "f4"))}, state)
    assert_same_bits(params["b"], np.ones(3, "f4"))
    assert_same_bits(params["a"], np.full(3, np.float32(1) - np.float32(0.1)))


def test_a_row_sparse_gradient_of_a_parameter_of_three_axes():
    weight = np.arange(24, dtype="f4").reshape(2, 3, 4)
    gradient = RowSparse.from_numpy([4], np.ones((1, 4), "f4"), 6)
    run = Run(optim.sgd(1.0), weight).apply(replace(gradient, shape=(2, 3, 4)))
    weight[1, 1] -= 1
    assert_same_bits(run.arrays()["w"], weight)


def test_another_learning_rate_compiles_nothing():
    gradient = RowSparse.from_numpy([1], np.ones((1, 3), "f4"), 4)
    run = Run(optim.sgd(0.1), np.zeros((4, 3), "f4")).apply(gradient)
    (program,) = run.state.programs.values()
    optim.sgd(0.2).apply_(run.params, {"w": gradient}, run.state)
    assert [*run.state.programs.values()] == [program]


@pytest.mark.parametrize("number", [1, np.float32(0.5), np.int64(2), 0])
def test_a_hyper_parameter_may_be_any_real_number(number):
    run = Run(optim.sgd(number), np.zeros(2)).apply(np.ones(2))
    assert run.optimizer.hyper == {"lr": float(number)}
    assert_same_bits(run.arrays()["w"], np.full(2, -float(number)) + 0.0)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1e-3, "0.1", None, True])
@pytest.mark.parametrize("make", [optim.sgd, optim.adagrad, optim.rowwise_adagrad])
def test_a_hyper_parameter_that_is_no_sensible_number_is_refused(make, number):
    with pytest.raises(ConfigError, match="lr must be finite and 0 or more, not "):
        make(number)


def _tensors(**arrays):
    return {name: as_tensor(array) for name, array in arrays.items()}


W = np.ones((4, 3), "f4")
ROWS = RowSparse.from_numpy([1], np.ones((1, 3), "f4"), 4)


@pytest.mark.parametrize(
    ("params", "gradient", "message"),
    [
        (_tensors(v=W), as_tensor(W), "no parameter and state for gradient 'w'"),
        (_tensors(w=W), as_tensor(W[:2]), r"gradient of 'w' is .*2, 3.*parameter is .*4, 3"),
        (_tensors(w=W), as_tensor(W.astype("f8")), "is .*float64.*parameter is .*float32"),
        (_tensors(w=W[:2]), ROWS, r"gradient of 'w' is .*4, 3.*parameter is .*2, 3"),
        (_tensors(w=W.astype("f8")), ROWS, "is .*float32.*parameter is .*float64"),
        (
            _tensors(w=W.astype("f2")),
            as_tensor(W.astype("f2")),
            "'w' is float16, .* but its gradient is",
        ),
        ({"w": W}, ROWS, "'w' is a ndarray; convert parameters and gradients with"),
        (_tensors(w=W), W, "'w' is a ndarray; convert parameters and gradients with"),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused(params, gradient, message):
    sgd = optim.sgd(0.1)
    with pytest.raises(ConfigError, match=message):
        sgd.apply_(params, {"w": gradient}, {name: {} for name in params})


def test_what_does_not_hold_arrays_by_name_is_refused():
    sgd, params = optim.sgd(0.1), _tensors(w=W)
    for given in ([as_tensor(W)], None):
        with pytest.raises(ConfigError, match="params is a .*; give a dict of arrays by name"):
            sgd.init(given)
        with pytest.raises(ConfigError, match="gradients is a .*; give a dict of arrays by name"):
            sgd.apply_(params, given, sgd.init(params))


def test_the_state_of_another_optimizer_is_refused():
    params = _tensors(w=W)
    state = optim.rowwise_adagrad(0.1).init(params)  # its "sum" is one number per row
    with pytest.raises(ConfigError, match=r"the state of 'w' has no 'sum' of shape \(4, 3\)"):
        optim.adagrad(0.1).apply_(params, {"w": ROWS}, state)
    with pytest.raises(ConfigError, match="the state of 'w' has no 'sum'"):
        optim.adagrad(0.1).apply_(params, {"w": ROWS}, {"w": {}})


def test_nothing_is_written_if_any_gradient_does_not_fit():
    params, sgd = _tensors(a=W, b=W), optim.sgd(0.1)
    with pytest.raises(ConfigError, match="gradient of 'b'"):
        sgd.apply_(params, {"a": as_tensor(W), "b": as_tensor(W[:2])}, sgd.init(params))
    assert_same_bits(params["a"], W)


def test_no_memory_for_a_slot_names_the_parameter_and_the_slot(monkeypatch):
    def full(*_):
        raise RuntimeError("std::bad_alloc")

    params = _tensors(table=W)
    monkeypatch.setattr(tensors, "_allocate", full)
    with pytest.raises(ResourceError, match="no memory for slot 'sum' of parameter 'table'"):
        optim.adagrad(0.1).init(params)


# --- A user's own formula -------------------------------------------------------------------------


def test_a_rule_of_ten_lines_gets_both_kernels():
    def step(w, g, slots, h):
        (mean,) = slots
        mean = h.decay * mean + (1 - h.decay) * g
        return w - h.lr * mean / (sqrt(mean * mean) + h.eps), (mean,)

    formula = Formula("normalised_momentum", step, (Slot("mean"),))
    mine = Optimizer(formula, {"lr": 0.1, "decay": 0.5, "eps": 1e-6})
    indices, values = [2, 0], np.array([[1.0, -2], [3, 4]])
    rows = Run(mine, np.zeros((3, 2))).apply(RowSparse.from_numpy(indices, values, 3))
    expected, _ = in_numpy(mine, np.zeros((2, 2)), values, {"mean": np.zeros((2, 2))})
    np.testing.assert_allclose(rows.arrays()["w"][indices], expected, rtol=1e-13)
    dense = Run(mine, np.zeros((2, 2))).apply(values)
    assert_same_bits(rows.arrays()["w"][indices], dense.arrays()["w"])


def test_all_results_are_computed_from_the_values_before_the_step():
    def swap(w, g, slots, h):
        return slots[0] + 0 * g, (w + 0 * g,)

    swapping = Optimizer(Formula("swap", swap, (Slot("other", initial=7.0),)), {})
    run = Run(swapping, W).apply(ROWS)
    assert (run.arrays()["w"][1] == 7).all() and (run.arrays()["other"][1] == 1).all()


@pytest.mark.parametrize(
    ("step", "slots", "message"),
    [
        (
            lambda w, g, s, h: (w - h.rate * g, s),
            (),
            "fails on symbols: .* has no attribute 'rate'",
        ),
        (lambda w, g, s, h: (w if g > 0 else g, s), (), "fails on symbols: "),
        (lambda w, g, s, h: (np.sqrt(w), s), (), "fails on symbols: "),
        (lambda w, g, s, h: w - h.lr * g, (), r"step must return \(w, slots\), slots being a"),
        (lambda w, g, s, h: (w, ()), (Slot("a"),), "1 slots, but step returns 0"),
        (lambda w, g, s, h: (w, (s[0] + g,)), (Slot("a", "row"),), "'a' depends on a single elem"),
        (
            lambda w, g, s, h: (w, (s[0], s[1] + s[0])),
            (Slot("e"), Slot("r", "row")),
            "per-row slot 'r' depends on a single element; use row_means",
        ),
        (lambda w, g, s, h: (w, s), (Slot("a"), Slot("a")), "the slot 'a' needs another name"),
        (lambda w, g, s, h: (w, s), (Slot("a", "table"),), "per must be 'element' or 'row'"),
    ],
)
def test_a_formula_that_cannot_become_a_kernel_is_refused_when_it_is_made(step, slots, message):
    with pytest.raises(ConfigError, match="mine: .*" + message):
        Optimizer(Formula("mine", step, slots), {"lr": 0.1})


def test_what_fitted_once_is_looked_at_again_when_it_changes():
    params, sgd = _tensors(w=W), optim.momentum(0.1)
    state = sgd.init(params)
    sgd.apply_(params, {"w": as_tensor(W)}, state)
    for gradient, message in [
        (as_tensor(W[:2]), "gradient of 'w'"),
        (as_tensor(W.astype("f8")), "float64"),
        (W, "'w' is a ndarray"),
    ]:
        with pytest.raises(ConfigError, match=message):
            sgd.apply_(params, {"w": gradient}, state)
    state["w"]["velocity"] = as_tensor(W[:2])
    with pytest.raises(ConfigError, match="the state of 'w' has no 'velocity'"):
        sgd.apply_(params, {"w": as_tensor(W)}, state)


def test_tensors_that_change_their_names_are_looked_at_again():
    params, sgd = _tensors(a=0 * W, b=0 * W), optim.sgd(1.0)
    state = sgd.init(params)
    gradients = _tensors(a=1 + 0 * W, b=2 + 0 * W)
    sgd.apply_(params, gradients, state)
    sgd.apply_({"b": params["a"], "a": params["b"]}, gradients, state)  # by value alone, the same
    assert_same_bits(params["a"], -3 + 0 * W)
    assert_same_bits(params["b"], -3 + 0 * W)
    with pytest.raises(ConfigError, match="no parameter and state for gradient 'a'"):
        sgd.apply_({"b": params["a"]}, gradients, state)
    assert_same_bits(params["b"], -3 + 0 * W)


def test_a_step_without_gradients_is_counted():
    params, sgd = _tensors(w=W), optim.sgd(1.0)
    assert sgd.apply_(params, {}, sgd.init(params)).step == 1


def test_losses_of_other_kinds_are_searched_too():
    params, sgd = _tensors(w=0 * W), optim.sgd(1.0)
    state = sgd.init(params)
    for loss in (np.float32(1), np.ones(1, "f4"), np.float64(1)):
        sgd.apply_(params, _tensors(w=W), state, loss=as_tensor(loss))
    with pytest.raises(NumericalError, match="the loss is nan"):
        sgd.apply_(params, _tensors(w=W), state, loss=as_tensor(np.float64("nan")))
    assert state.step == 3


def test_duplicates_that_overflow_in_their_sum_are_found_by_the_norm():
    params = _tensors(w=W)
    huge = np.full((2, 3), 3e38, np.float32)
    gradient = RowSparse.from_numpy([1, 1], huge, 4)
    clipped = optim.sgd(0.1, clip_norm=1.0)
    with pytest.raises(NumericalError, match="the global norm is not finite in step 1: nothing"):
        clipped.apply_(params, {"w": gradient}, clipped.init(params))
    assert_same_bits(as_numpy(params["w"]), W)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_a_state_says_what_of_it_to_keep_rather_than_copy_half_of_it(copied):
    state = optim.adam(0.1).init({"w": as_tensor(np.ones((2, 3)))})
    with pytest.raises(TypeError, match="cannot be pickled or copied: keep its content"):
        copied(state)
    kept = copy.deepcopy({name: dict(slots) for name, slots in state.items()})
    assert_same_bits(kept["w"]["mean"], np.zeros((2, 3)))


SHOWN = {
    "<Optimizer: adagrad, lr=0.02, eps=1e-10>": lambda: optim.adagrad(0.02),
    "<Optimizer: sgd, lr=constant(value=0.1) * warmup(steps=10), mode='exact', clip_norm=1.0>": (
        lambda: optim.sgd(optim.constant(0.1) * optim.warmup(10), mode="exact", clip_norm=1.0)
    ),
}


@pytest.mark.parametrize("shown, make", SHOWN.items())
def test_an_optimizer_shows_its_numbers_and_the_options_that_were_chosen(shown, make):
    assert repr(make()) == shown
