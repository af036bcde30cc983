# SPDX-License-Identifier: Apache-2.0
"""Tables stored in half precision: float32 arithmetic, rounded by chance, alike on every path."""

import numpy as np
import pytest

from sparsetrain import optim
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.kernels.table_formats.half import HALVES
from sparsetrain.kernels.table_formats.noise import keys_of
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_same_bits, slow_except
from tests.kernels.table_formats.in_numpy import random_bits, rounded
from tests.optim.formulas import OPTIMIZERS, Run
from tests.optim.oracle import Table, lr
from tests.optim.references import made

ROWS = 9
EACH = pytest.mark.parametrize("dtype", HALVES)
# Each way of decay, each kind of slot, clipping: others differ by little or by numbers alone.
KINDS = ("adam, coupled decay", "adamw", "rowwise_adagrad, coupled decay", "ftrl") + (
    "sgd, coupled decay",
    "adam, clipped",
)
NO_OP = {"sgd": optim.sgd, "adagrad": optim.adagrad, "rowwise_adagrad": optim.rowwise_adagrad}


def halves(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return drawn.astype("f4").astype(format_of(dtype).array)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16) if array.dtype.itemsize == 2 else array


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, array in expected.items():
        assert_same_bits(bits(found[name]), bits(array))


# One width that all share, then others for one formula: kernels take time to build. Those of one
# formula without slots, one with slots of elements and rows, and one vector more are quick.
CASES = [(name, 17, list(HALVES)[n % 2]) for n, name in enumerate(OPTIMIZERS)] + [
    ("mixed", 1, "float16"),
    ("mixed", 131, "bfloat16"),
]


QUICK = [("sgd", 17, "bfloat16"), ("adagrad", 17, "float16"), ("mixed", 131, "bfloat16")]


@pytest.mark.parametrize(("name", "width", "dtype"), slow_except(QUICK, CASES))
def test_a_step_is_that_of_float32_rounded_by_the_bits_of_its_step_row_and_column(
    name, width, dtype
):
    half = Run(OPTIMIZERS[name], halves(dtype, (ROWS, width)), seed=5)
    rng = np.random.default_rng(1)
    for step in range(1, 4):
        before = half.arrays()
        wide = Run(OPTIMIZERS[name], before["w"].astype("f4"))
        for slot, tensor in wide.state["w"].items():
            tensor.copyfrom(half.state["w"][slot])
        values = rng.standard_normal((30, width)).astype("f4")
        gradient = RowSparse.from_numpy(rng.integers(0, ROWS, 30), values, ROWS)
        expected = wide.apply(gradient).arrays()
        random = random_bits(keys_of(5, "w", step), np.arange(ROWS), width)
        expected["w"] = rounded(expected["w"], random, dtype).astype(format_of(dtype).array)
        assert_same(half.apply(gradient).arrays(), expected)


@EACH
@pytest.mark.parametrize("update", ["sparse", "dense"])
def test_untouched_rows_keep_their_bits_even_those_of_nan(dtype, update):
    every = np.arange(65_536, dtype=np.uint16)
    if update == "dense":  # a NaN that signals does so when it is read
        infinite, quiet = (0x7F80, 0x40) if dtype == "bfloat16" else (0x7C00, 0x200)
        every = np.where((every & 0x7FFF) > infinite, every | quiet, every)
    table = every.astype(np.uint16).reshape(-1, 16).view(format_of(dtype).array)
    run = Run(optim.sgd(0.1, update=update), table)
    for step in range(3):
        indices = np.array([7, 4000, 7 + step])
        run.apply(RowSparse.from_numpy(indices, np.ones((3, 16), "f4"), len(table)))
    others = np.setdiff1d(np.arange(len(table)), [7, 8, 9, 4000])
    np.testing.assert_array_equal(bits(run.arrays()["w"])[others], bits(table)[others])


@pytest.mark.parametrize("name", slow_except(["adamw", "rowwise_adagrad, coupled decay"], KINDS))
def test_exact_mode_gives_the_bits_of_the_dense_optimizer(name):
    exact, dense = (
        Table(made(name, lr(40), mode=mode), 300, 3, "bfloat16").train(20, 20).arrays()
        for mode in ("exact", "dense")
    )
    assert_same(exact, dense)


def test_exact_mode_is_exact_in_float16_and_after_a_flush():
    exact = Table(made("adamw", lr(60), mode="exact"), 300, 16, "float16")
    dense = Table(made("adamw", lr(60), mode="dense"), 300, 16, "float16")
    for part in range(3):
        assert_same(
            exact.train(20, 20, seed=part).arrays(), dense.train(20, 20, seed=part).arrays()
        )


def test_a_cap_errs_by_no_more_than_steps_of_the_format():
    capped, dense = (
        Table(made("adamw", lr(200), **options), 100, 8, "bfloat16").train(200, 20).arrays()
        for options in ({"mode": "exact", "max_replayed_steps": 20}, {"mode": "dense"})
    )
    assert np.abs(capped["w"].astype("f4") - dense["w"].astype("f4")).max() < 0.05


PATHS = [*((name, "bfloat16") for name in NO_OP), ("sgd", "float16")]


@pytest.mark.parametrize(
    ("name", "dtype"), slow_except([("adagrad", "bfloat16"), ("sgd", "float16")], PATHS)
)
def test_the_paths_of_an_update_give_the_same_bits(name, dtype):
    sparse, dense = (
        Table(NO_OP[name](0.1, update=update), 300, 5, dtype).train(10, 40).arrays()
        for update in ("sparse", "dense")
    )
    assert_same(dense, sparse)


@EACH
def test_updates_too_small_for_the_format_add_up_on_average(dtype):
    """To nearest, none of these steps would move a weight."""
    steps, rows, width, change = 64, 256, 16, 2.0**-13
    run = Run(optim.sgd(1.0), np.ones((rows, width), format_of(dtype).array))
    gradient = RowSparse.from_numpy(np.arange(rows), np.full((rows, width), change, "f4"), rows)
    for _ in range(steps):
        run.apply(gradient)
    found = run.arrays()["w"].astype("f8")
    spacing = 2.0**-8 if dtype == "bfloat16" else 2.0**-11  # below 1
    variance = steps * (change / spacing) * spacing**2 / (rows * width)  # of the mean, at most
    assert abs(found.mean() - (1 - steps * change)) < 5 * np.sqrt(variance)
    assert len(np.unique(found)) > 1


def test_another_seed_rounds_in_another_way_and_the_same_seed_in_the_same():
    gradient = RowSparse.from_numpy([0, 3], np.full((2, 16), 1e-3, "f4"), ROWS)
    first, second, other = (
        Run(optim.sgd(1.0), halves("bfloat16", (ROWS, 16)), seed).apply(gradient).arrays()
        for seed in (0, 0, 1)
    )
    assert_same(first, second)
    assert (first["w"] != other["w"]).any()


def test_slots_of_a_half_table_are_float32():
    run = Run(optim.adam(0.1), halves("float16", (ROWS, 4)))
    assert {slot.dtype.name for name, slot in run.arrays().items() if name != "w"} == {"float32"}


def test_a_dense_gradient_of_a_half_table_is_refused_by_name():
    run = Run(optim.sgd(0.1), halves("bfloat16", (ROWS, 4)))
    with pytest.raises(ConfigError, match="'w' is bfloat16, .* but its gradient is dense"):
        run.apply(np.ones((ROWS, 4), "f4"))
    half = RowSparse.from_numpy([1], np.ones((1, 4), np.float16), ROWS)
    with pytest.raises(ConfigError, match="'w' is .*float16.* is .*bfloat16.*takes float32"):
        run.apply(half)
    assert_same(run.arrays(), {"w": halves("bfloat16", (ROWS, 4))})
