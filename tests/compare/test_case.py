# SPDX-License-Identifier: Apache-2.0
"""Ids by a law: within the table, the same from a seed, as skewed as they are said to be."""

import numpy as np
import pytest

from sparsetrain.compare import Case
from sparsetrain.errors import ConfigError

LAWS = ("uniform", "zipf0.5", "zipf1", "zipf1.5")


@pytest.mark.parametrize("skew", LAWS)
@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_ids_lie_in_the_table_and_follow_from_the_seed(skew, rows):
    case = Case(rows, lookups=500, skew=skew)
    first, again = (list(case.draw_ids(3)) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one.dtype == np.int32 and one.shape == (500,)
        assert one.min() >= 0 and one.max() < rows
        np.testing.assert_array_equal(one, other)


def test_more_skew_leaves_fewer_distinct_rows():
    unique = [
        np.mean([len(np.unique(x)) for x in Case(100_000, skew=law).draw_ids(5)]) for law in LAWS
    ]
    assert unique == sorted(unique, reverse=True)


def test_steps_differ():
    first, second = Case(10_000).draw_ids(2)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("skew", ["zipf", "zipf-1", "normal", "same"])
def test_an_unknown_law_is_refused(skew):
    with pytest.raises(ConfigError, match="uniform, or zipf"):
        Case(10, skew=skew)
