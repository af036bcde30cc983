# SPDX-License-Identifier: Apache-2.0
"""The lookup's kernel, as every processor is asked: the bits are those of the table."""

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.embedding import lookup_kernel as module
from sparsetrain.embedding.lookup_kernel import PREFETCH, lookup_kernel
from sparsetrain.kernels.table_formats import computed_in, stored_width
from sparsetrain.kernels.table_formats.names import INT8_ROWS, numpy_dtype
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target
from tests.helpers import assert_same_bits

STREAMED = {"streamed": 0, "kept": 1 << 60}
EACH_PREFETCH = pytest.mark.parametrize("prefetch", PREFETCH.values(), ids=["zen", "others"])
EACH_WRITE = pytest.mark.parametrize("bytes_", STREAMED.values(), ids=STREAMED)


def looked_up(table: np.ndarray, ids: np.ndarray, width: int, dtype: str, prefetch) -> np.ndarray:
    lookup_kernel.cache_clear()
    kernel = lookup_kernel(width, dtype, str(ids.dtype), prefetch)
    lookup_kernel.cache_clear()
    out = runtime.empty((len(ids), width), computed_in(dtype))
    compile_kernel(kernel, host_target())(as_tensor(table), as_tensor(ids), out)
    return as_numpy(out)


def drawn(rows: int, width: int, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if dtype == INT8_ROWS:
        table = rng.integers(0, 256, (rows, stored_width(width, dtype)), dtype=np.uint8)
        table[:, width:] = rng.random((rows, 2), np.float32).view(np.uint8)
        return table
    return rng.standard_normal((rows, width)).astype(numpy_dtype(dtype))


@EACH_PREFETCH
@EACH_WRITE
@pytest.mark.parametrize("width", [8, 17, 64, 80, 128])
@pytest.mark.parametrize("count", [0, 1, 64, 200])
def test_each_result_is_the_row_of_its_id(count, width, bytes_, prefetch, monkeypatch):
    monkeypatch.setattr(module, "STREAMED", bytes_)
    table = drawn(300, width, "float32")
    ids = np.random.default_rng(1).integers(0, len(table), count)
    assert_same_bits(looked_up(table, ids, width, "float32", prefetch), table[ids])


@EACH_PREFETCH
@EACH_WRITE
def test_an_id_outside_the_table_reads_as_nan(bytes_, prefetch, monkeypatch):
    monkeypatch.setattr(module, "STREAMED", bytes_)
    table = drawn(30, 64, "float32")
    ids = np.array([3, -1, 30, 1 << 30, 29], np.int32)
    found = looked_up(table, ids, 64, "float32", prefetch)
    assert np.isnan(found[1:4]).all()
    assert_same_bits(found[[0, 4]], table[[3, 29]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", INT8_ROWS, "float64"])
def test_rows_of_any_dtype_go_past_the_caches_with_the_same_bits(dtype, monkeypatch):
    table = drawn(200, 128, dtype)
    ids = np.random.default_rng(1).integers(0, len(table), 150)
    results = []
    for bytes_ in STREAMED.values():
        monkeypatch.setattr(module, "STREAMED", bytes_)
        results.append(looked_up(table, ids, 128, dtype, PREFETCH[""]))
    assert_same_bits(*results)
