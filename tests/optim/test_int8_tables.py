# SPDX-License-Identifier: Apache-2.0
"""Tables of int8 that train: float32 arithmetic, and rows rounded by chance with their scales."""

import numpy as np
import pytest

from sparsetrain import optim, runtime
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import INT8
from sparsetrain.kernels.table_formats.noise import keys_of
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_same_bits, slow_except
from tests.kernels.table_formats.in_numpy import int8_rows, random_bits
from tests.optim.formulas import OPTIMIZERS, Run

ROWS = 9
TRAINS = {
    **{name: OPTIMIZERS[name] for name in ("sgd", "rowwise_adagrad", "count")},
    "coupled decay": optim.rowwise_adagrad(0.1, weight_decay=0.1),
    "decoupled decay, clipped": optim.sgd(0.1, weight_decay=0.1, decoupled=True, clip_value=0.5),
}
CASES = [(name, 17) for name in TRAINS] + [("rowwise_adagrad", 1), ("sgd", 16), ("count", 131)]
QUICK = [("sgd", 16), ("rowwise_adagrad", 17), ("count", 131)]


def table(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    return INT8.rows(np.random.default_rng(seed).standard_normal(shape).astype("f4"))


@pytest.mark.parametrize(("name", "width"), slow_except(QUICK, CASES))
def test_a_step_is_that_of_float32_rounded_by_the_bits_of_its_step_row_and_column(name, width):
    stored = Run(TRAINS[name], table((ROWS, width)), seed=5)
    rng = np.random.default_rng(1)
    for step in range(1, 5):
        before = stored.arrays()
        wide = Run(TRAINS[name], INT8.floats(before["w"]))
        for slot, tensor in wide.state["w"].items():
            tensor.copyfrom(stored.state["w"][slot])
        ids = rng.integers(0, ROWS - 1, 30)
        values = (rng.standard_normal((30, width)) * 10.0**step).astype("f4")
        gradient = RowSparse.from_numpy(ids, values, ROWS)
        expected = wide.apply(gradient).arrays()
        random = random_bits(keys_of(5, "w", step), np.arange(ROWS), width)
        rounded = int8_rows(expected["w"], random)
        touched = np.isin(np.arange(ROWS), ids)
        expected["w"] = np.where(touched[:, None], rounded, before["w"])
        found = stored.apply(gradient).arrays()
        for array, bits in expected.items():
            assert_same_bits(found[array], bits)


def test_updates_too_small_for_a_row_add_up_on_average():
    """To nearest, none of these steps would move a weight but the largest."""
    steps, rows, width, change = 64, 256, 16, 2.0**-13
    run = Run(optim.sgd(1.0), INT8.rows(np.ones((rows, width), "f4")))
    gradient = RowSparse.from_numpy(np.arange(rows), np.full((rows, width), change, "f4"), rows)
    for _ in range(steps):
        run.apply(gradient)
    found = INT8.floats(run.arrays()["w"]).astype("f8")
    step = 2.0**-6
    variance = steps * (change / step) * step**2 / (rows * width)  # of the mean, at most
    assert abs(found.mean() - (1 - steps * change)) < 5 * np.sqrt(variance)
    assert len(np.unique(found)) > 1


def test_the_bits_do_not_depend_on_the_number_of_threads():
    def trained(threads: int) -> np.ndarray:
        runtime.set_num_threads(threads)
        run, rng = Run(optim.rowwise_adagrad(0.1), table((500, 16))), np.random.default_rng(2)
        for _ in range(5):
            values = rng.standard_normal((700, 16)).astype("f4")
            run.apply(RowSparse.from_numpy(rng.integers(0, 500, 700), values, 500))
        return run.arrays()["w"]

    before = runtime.num_threads()
    try:
        assert_same_bits(trained(1), trained(2))
    finally:
        runtime.set_num_threads(before)


def test_another_seed_rounds_in_another_way_and_the_same_seed_in_the_same():
    gradient = RowSparse.from_numpy([0, 3], np.full((2, 16), 1e-3, "f4"), ROWS)
    first, second, other = (
        Run(optim.sgd(1.0), table((ROWS, 16)), seed).apply(gradient).arrays()["w"]
        for seed in (0, 0, 1)
    )
    assert_same_bits(first, second)
    assert (first != other).any()


def test_a_row_that_overflows_reads_as_nan():
    run = Run(optim.sgd(1.0), table((ROWS, 4)))
    run.apply(RowSparse.from_numpy([1], np.full((1, 4), 3.39e38, "f4"), ROWS))
    found = run.arrays()["w"]
    assert np.isnan(INT8.scales(found)).ravel().tolist() == [row == 1 for row in range(ROWS)]


def test_a_row_takes_its_width_a_scale_and_the_slots_of_rows():
    for optimizer, beside in ((optim.sgd(0.1), 4), (optim.rowwise_adagrad(0.1), 8)):
        arrays = Run(optimizer, table((ROWS, 16))).arrays().values()
        assert sum(array.nbytes for array in arrays) == ROWS * (16 + beside)


@pytest.mark.parametrize(
    ("optimizer", "error"),
    [
        (optim.adam(0.1), "'w' is int8, and adam keeps a whole row of 'mean' beside each"),
        (optim.adagrad(0.1), "'w' is int8, and adagrad keeps a whole row of 'sum' beside each"),
        (optim.sgd(0.1, mode="dense"), "'w' is int8, which takes updates of touched rows alone"),
        (optim.sgd(0.1, update="dense"), "'w' is int8, which takes updates of touched rows alone"),
        (optim.sgd(0.1, mode="exact", weight_decay=0.1), "'w' is int8, which takes updates of"),
        (optim.sgd(0.1, mode="exact", average=0.5), "average needs float32 parameters, but 'w' is"),
    ],
)
def test_what_rows_of_int8_cannot_do_is_refused_before_the_first_step(optimizer, error):
    with pytest.raises(ConfigError, match=error):
        Run(optimizer, table((ROWS, 4)))


def test_a_dense_gradient_is_refused_by_name():
    run = Run(optim.sgd(0.1), table((ROWS, 4)))
    with pytest.raises(ConfigError, match="'w' is int8, .* but its gradient is dense"):
        run.apply(np.ones((ROWS, 4), "f4"))
    with pytest.raises(ConfigError, match=r"is \(\(9, 8\), 'float32'\), but parameter is .*takes"):
        run.apply(RowSparse.from_numpy([1], np.ones((1, 8), "f4"), ROWS))
    assert_same_bits(run.arrays()["w"], table((ROWS, 4)))
