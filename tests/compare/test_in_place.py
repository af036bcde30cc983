# SPDX-License-Identifier: Apache-2.0
"""The roof is called where the kernel is, on the rows of that step."""

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.compare import in_place
from sparsetrain.compare.arms import ARMS, Taken
from sparsetrain.compare.batch import make_batches
from sparsetrain.compare.case import Case
from sparsetrain.compare.ids import distinct, draw_ids

CASE = Case(300, lookups=64, width=8)
WARM = 3


@pytest.fixture
def called(monkeypatch):
    """Rows of each call of a roof's kernel."""
    rows = []

    def roofs(width):
        assert width == CASE.width
        return [lambda weight, some: rows.append((weight, runtime.as_numpy(some).copy()))] * 2

    monkeypatch.setattr(in_place, "random_row_kernels", roofs)
    return rows


@pytest.mark.parametrize("formula", ["sgd", "adagrad", "adam"])
def test_every_other_step_calls_the_roof_on_its_rows_of_the_table(called, formula):
    case = Case(300, lookups=64, width=8, formula=formula)
    ids = list(draw_ids(case, WARM + 8))
    step = ARMS["sparse"].prepare(case)
    found = in_place.kernel_and_roof(step, make_batches(case, ids), case.width, WARM)
    assert found.kernel > 0 and found.roof > 0
    assert len(called) == 4
    for (weight, rows), drawn in zip(called, ids[WARM + 1 :: 2], strict=True):
        assert tuple(weight.shape) == (case.rows, case.width)
        np.testing.assert_array_equal(rows, distinct(drawn))


def test_what_calls_no_kernel_or_too_seldom_has_none(called):
    batches = list(make_batches(CASE, draw_ids(CASE, WARM + 4)))
    assert in_place.kernel_and_roof(lambda batch: Taken(1.0), batches, CASE.width, WARM) is None
    step = ARMS["sparse"].prepare(CASE)
    assert in_place.kernel_and_roof(step, batches[: WARM + 1], CASE.width, WARM) is None
