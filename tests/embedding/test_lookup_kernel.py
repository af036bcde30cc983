# SPDX-License-Identifier: Apache-2.0
"""The lookup's kernel: the bits are those of the table."""

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.embedding.lookup_kernels import lookup_kernel
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target
from tests.helpers import assert_same_bits


def looked_up(table: np.ndarray, ids: np.ndarray, width: int, dtype: str) -> np.ndarray:
    kernel = lookup_kernel(width, dtype, str(ids.dtype))
    out = runtime.empty((len(ids), width), format_of(dtype).computed)
    compile_kernel(kernel, host_target())(as_tensor(table), as_tensor(ids), out)
    return as_numpy(out)


def drawn(rows: int, width: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, width)).astype(dtype)


@pytest.mark.parametrize("width", [8, 17, 80])
def test_each_result_is_the_row_of_its_id(width):
    table = drawn(300, width, "float32")
    for count in (0, 1, 200):
        ids = np.random.default_rng(1).integers(0, len(table), count)
        assert_same_bits(looked_up(table, ids, width, "float32"), table[ids])


def test_an_id_outside_the_table_reads_as_nan():
    table = drawn(30, 64, "float32")
    ids = np.array([3, -1, 30, 1 << 30, 29], np.int32)
    found = looked_up(table, ids, 64, "float32")
    assert np.isnan(found[1:4]).all()
    assert_same_bits(found[[0, 4]], table[[3, 29]])
