# SPDX-License-Identifier: Apache-2.0
"""Before the step: clipping by value and by global norm, accumulation, non-finite gradients."""

import numpy as np
import pytest

from sparsetrain import optim
from sparsetrain.errors import ConfigError, NumericalError
from sparsetrain.optim import accumulate_, global_norm
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_same_bits, dense_sum
from tests.optim.formulas import Run

ROWS = 40


def mix(seed: int = 0, count: int = 200):
    """Two dense gradients and a row-sparse one with duplicates, and all of them densified."""
    rng = np.random.default_rng(seed)
    indices, values = rng.integers(0, ROWS, count), rng.standard_normal((count, 5)).astype("f4")
    dense = {"m": rng.standard_normal((30, 70)).astype("f4"), "b": np.ones(3, "f4")}
    gradients = {name: as_tensor(array) for name, array in dense.items()}
    gradients["t"] = RowSparse.from_numpy(indices, values, ROWS)
    return gradients, dense | {"t": dense_sum(indices, values, ROWS)}


def zeros(like):
    return {name: as_tensor(np.zeros(array.shape, "f4")) for name, array in like.items()}


def test_the_global_norm_is_that_of_the_densified_gradients():
    gradients, dense = mix()
    exact = np.sqrt(sum(np.square(array, dtype="f8").sum() for array in dense.values()))
    assert global_norm(gradients) == pytest.approx(exact, rel=1e-12)
    assert global_norm({}) == 0 and global_norm({"e": as_tensor(np.zeros((0, 3), "f4"))}) == 0


@pytest.mark.parametrize("limit", [1.0, 1e6])
def test_clipping_by_norm_scales_the_mix_as_if_it_were_dense(limit):
    gradients, dense = mix()
    optimizer = optim.sgd(1.0, clip_norm=limit)
    params = zeros(dense)
    applied = optimizer.apply_(params, gradients, optimizer.init(params))
    norm = np.sqrt(sum(np.square(array, dtype="f8").sum() for array in dense.values()))
    assert applied.norm == pytest.approx(norm, rel=1e-12)
    for name, array in dense.items():
        expected = -array.astype("f8") * min(1, limit / norm)
        np.testing.assert_allclose(as_numpy(params[name]), expected, rtol=1e-5, atol=1e-7)


def test_clipping_by_value_limits_the_sum_of_duplicates_not_its_terms():
    values = np.array([[3.0, -0.5], [-2.5, -0.25]])
    run = Run(optim.sgd(1.0, clip_value=0.6), np.zeros((2, 2)))
    run.apply(RowSparse.from_numpy([1, 1], values, 2))
    assert_same_bits(run.arrays()["w"][1], np.array([-0.5, 0.6]))
    both = Run(optim.sgd(1.0, clip_value=0.6, clip_norm=100.0), np.zeros((2, 2)))
    both.apply(RowSparse.from_numpy([1, 1], values, 2))
    assert_same_bits(both.arrays()["w"], run.arrays()["w"])


@pytest.mark.parametrize("make", [optim.adam, optim.sgd, optim.rowwise_adagrad])
def test_eight_micro_batches_give_the_step_of_one_large_batch(make):
    rng = np.random.default_rng(0)
    ids, values = rng.integers(0, ROWS, 800), rng.standard_normal((800, 5)).astype("f4") / 100
    matrix = rng.standard_normal((8, 30, 7)).astype("f4")
    acc, union = {}, set()
    for part in range(8):
        here = slice(100 * part, 100 * part + 100)
        gradient = RowSparse.from_numpy(ids[here], values[here], ROWS)
        accumulate_({"t": gradient, "m": as_tensor(matrix[part])}, acc, 1 / 8)
        union |= set(ids[here].tolist())
        assert acc["t"].coalesced and acc["t"].nse == len(union)  # no more rows than were touched
    whole = {"t": RowSparse.from_numpy(ids, values / 8, ROWS), "m": as_tensor(matrix.mean(0))}
    results = []
    for gradients in (acc, whole):
        params = zeros({"t": np.empty((ROWS, 5)), "m": matrix[0]})
        optimizer = make(0.001)
        optimizer.apply_(params, gradients, optimizer.init(params))
        results.append({name: as_numpy(param) for name, param in params.items()})
    for name, array in results[1].items():
        np.testing.assert_allclose(results[0][name], array, rtol=0, atol=1e-6)


def test_an_accumulator_does_not_change_the_gradients_it_was_given():
    gradients, dense = mix()
    acc = {}
    accumulate_(gradients, acc)
    accumulate_(gradients, acc)
    assert_same_bits(gradients["m"], dense["m"])
    np.testing.assert_allclose(as_numpy(acc["m"]), 2 * dense["m"])
    np.testing.assert_allclose(as_numpy(acc["t"].to_dense()), 2 * dense["t"], rtol=1e-6)


def test_a_gradient_that_does_not_fit_its_accumulator_is_refused_before_anything_changes():
    gradients, dense = mix()
    acc = {}
    accumulate_(gradients, acc)
    with pytest.raises(ConfigError, match="gradient of 't' is .'dense'.*has .'row-sparse'"):
        accumulate_(gradients | {"t": as_tensor(dense["t"])}, acc)
    np.testing.assert_allclose(as_numpy(acc["m"]), dense["m"])


BAD = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("where", ["m", "t"])
def test_a_gradient_that_is_not_finite_stops_before_the_update_or_is_skipped_and_counted(
    where, value
):
    gradients, dense = mix()
    tensor = gradients["t"].values if where == "t" else gradients["m"]
    as_numpy(tensor, writable=True)[-1, -1] = value
    params = zeros(dense)
    stopping, skipping = optim.adam(0.1), optim.adam(0.1, on_nonfinite="skip")
    with pytest.raises(NumericalError, match=f"'{where}' is not finite in step 1: nothing was"):
        stopping.apply_(params, gradients, stopping.init(params))
    state = skipping.init(params)
    applied = skipping.apply_(params, gradients, state)
    assert (state.skipped, state.step, applied.skipped is not None) == (1, 0, True)
    for name, array in dense.items():
        assert_same_bits(params[name], np.zeros_like(array))
    skipping.apply_(params, mix(1)[0], state)
    assert (state.skipped, state.step) == (1, 1)


def test_large_finite_numbers_whose_sum_overflows_are_finite():
    run = Run(optim.sgd(1.0), np.zeros(4, "f4")).apply(np.full(4, 3e38, "f4"))
    assert_same_bits(run.arrays()["w"], np.full(4, -3e38, "f4"))


def test_a_loss_that_is_not_finite_counts_as_well():
    gradients, dense = mix()
    params, skipping = zeros(dense), optim.sgd(0.1, on_nonfinite="skip")
    state = skipping.init(params)
    applied = skipping.apply_(params, gradients, state, loss=as_tensor(np.float32(np.nan)))
    assert applied.skipped == "the loss is nan" and state.skipped == 1


def test_parts_that_overflow_to_either_side_are_summed_without_a_warning():
    acc = {}
    for value in (np.inf, -np.inf):
        accumulate_({"w": as_tensor(np.float32([value]))}, acc)
    assert np.isnan(acc["w"].numpy()).all()
