# SPDX-License-Identifier: Apache-2.0
"""The exact global norm, against `math.fsum`."""

import math

import numpy as np
import pytest

from sparsetrain import RowSparse
from sparsetrain.parallel.comm import Comm
from sparsetrain.parallel.sums import exact_norm
from sparsetrain.runtime import as_tensor
from tests.parallel.threads import all_of, run_ranks


@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e15])
def test_the_norm_is_that_of_exact_sums_on_any_number_of_ranks(scale):
    rng = np.random.default_rng(0)
    values = (scale * rng.normal(size=(64, 3)) * 10.0 ** rng.integers(-4, 4, (64, 1))).astype("f4")
    dense = rng.normal(size=5).astype("f4")
    squares = [sum(x * x for x in map(float, row)) for row in (*values, dense)]

    def of(comm, rows):
        sparse = RowSparse.from_numpy(np.arange(len(rows)), rows, 64)
        return exact_norm({"dense": as_tensor(dense), "table": sparse}, comm)

    alone = of(Comm(), values)
    assert alone == pytest.approx(math.sqrt(math.fsum(squares)), rel=1e-15)
    for size in (2, 3):
        shared = run_ranks(size, lambda comm: of(comm, values[comm.rank :: comm.size]))
        assert all_of(shared) == [alone] * size


def test_a_norm_that_overflows_is_infinite():
    huge = as_tensor(np.full(2, np.inf, "f4"))
    assert exact_norm({"dense": huge}, Comm()) == math.inf
