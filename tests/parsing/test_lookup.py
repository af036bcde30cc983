# SPDX-License-Identifier: Apache-2.0
"""Ids of 32-bit keys by the kernel, against NumPy's search of the same table."""

import copy

import numpy as np
import pytest

from sparsetrain.data.columns.hash_table import IdTable


@pytest.mark.parametrize("size", [0, 1, 5, 3000])
def test_the_kernel_finds_what_numpy_finds(size):
    rng = np.random.default_rng(size)
    keys = np.unique(rng.integers(0, 2**32, size))
    keys = np.unique(np.concatenate([keys, keys[:2] + 2**32, -keys[:2], [0][: len(keys)]]))
    table = IdTable(keys, np.arange(2, 2 + len(keys)), 1)
    asked = np.concatenate([keys[keys >= 0], [0, 2**32 - 1], rng.integers(0, 2**32, 200)])
    asked = (asked % 2**32).astype(np.uint32)
    np.testing.assert_array_equal(table.find_short(asked), table.find(asked.astype(np.int64)))


def test_a_copy_finds_the_same():
    table, asked = IdTable(np.arange(0, 900, 3), np.arange(2, 302), 1), np.arange(900)
    short = asked.astype(np.uint32)
    for _ in range(2):
        found = table.find_short(short)
        np.testing.assert_array_equal(found, table.find(asked))
        table = copy.deepcopy(table)
    np.testing.assert_array_equal(table.find_short(short), found)
