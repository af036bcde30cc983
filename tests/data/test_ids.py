# SPDX-License-Identifier: Apache-2.0
"""Ids of rows in both forms: what holds for single ids holds for bags of one."""

import numpy as np
import pytest

from sparsetrain.data import Ragged, batch
from sparsetrain.data.ragged import one_each

FEATURES = [np.array([3, 1, 4], np.int32), np.array([1, 5, 9], np.int32)]
SINGLE = batch.joined_ids(FEATURES)
BAGS = batch.joined_ids([one_each(FEATURES[0]), FEATURES[1]])


def rows_of(found):
    """Each row's ids of each feature, whichever form they have."""
    bags = [one_each(each) for each in found.T] if isinstance(found, np.ndarray) else found
    ends = [each.offsets.tolist() for each in bags]
    assert all(end == [*range(len(end))] for end in ends)
    return np.stack([each.ids for each in bags], axis=1).tolist()


@pytest.mark.parametrize("found", [SINGLE, BAGS], ids=["single", "bags"])
def test_rows_are_cut_joined_and_copied_alike_in_both_forms(found):
    assert rows_of(found) == [[3, 1], [1, 5], [4, 9]]
    assert batch.num_features(found) == 2
    assert [each.tolist() for each in batch.by_feature(found)] == [[3, 1, 4], [1, 5, 9]]
    assert rows_of(batch.take_ids(found, slice(1, 3))) == [[1, 5], [4, 9]]
    assert rows_of(batch.take_ids(found, np.array([2, 0]))) == [[4, 9], [3, 1]]
    assert rows_of(batch.concat_ids([found, batch.take_ids(found, slice(1))]))[-1] == [3, 1]
    assert rows_of(batch.owned_ids(found)) == rows_of(found)
    assert {each.dtype.name for each in batch.by_feature(batch.owned_ids(found))} == {"int64"}
    assert batch.first_outside(found, [5, 10]) is None
    assert batch.first_outside(found, [5, 9]) == (2, 1, 9)


def test_a_feature_of_bags_makes_bags_of_all_and_one_with_weights_weighs_all():
    weighed = Ragged(np.array([7, 8]), [0, 2, 2, 2], np.array([0.5, 2], np.float32))
    left, right = batch.joined_ids([weighed, FEATURES[1]])
    assert left is weighed
    assert right.offsets.tolist() == [0, 1, 2, 3] and right.weights.tolist() == [1, 1, 1]


def test_columns_of_bags_are_lists_and_of_single_ids_numbers():
    assert [column.to_pylist() for column, _ in batch.as_columns(SINGLE)] == [[3, 1, 4], [1, 5, 9]]
    lists = [column.to_pylist() for column, _ in batch.as_columns(BAGS)]
    assert lists == [[[3], [1], [4]], [[1], [5], [9]]]
