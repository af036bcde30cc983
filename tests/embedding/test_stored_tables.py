# SPDX-License-Identifier: Apache-2.0
"""Lookups in tables that are stored in less than float32."""

from dataclasses import replace

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.embedding.lookup_kernels import lookup_kernel
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target
from tests.embedding.bags import Kind
from tests.helpers import assert_same_bits

KINDS = {
    "mean, odd width": (Kind("mean", features=3, width=17, id_dtype="int64"), "float16"),
    "weighted": (Kind(weighted=True, width=16), "bfloat16"),
}


@pytest.mark.parametrize(("kind", "dtype"), KINDS.values(), ids=KINDS)
def test_a_bag_of_half_rows_is_that_of_the_rows_in_float32(kind, dtype):
    arguments = kind.draw([3, 0, 1, 5, 2, 4], np.random.default_rng(0))
    half = np.asarray(arguments["table"]).astype(format_of(dtype).array)
    wide = {**arguments, "table": half.astype(np.float32)}
    stored = {**arguments, "table": half}
    kept = replace(kind, table_dtype=dtype)
    params = ("table", "weights") if kind.weighted else ("table",)

    def results(program, given):
        return program({name: given[name] for name in params}, given)

    found, expected = results(kept.forward(), stored), results(kind.forward(), wide)
    assert_same_bits(found, as_numpy(expected))
    _, found = results(kept.program(), stored)
    _, expected = results(kind.program(), wide)
    assert_same_bits(found["table"].values, as_numpy(expected["table"].values))
    assert found["table"].dtype == "float32"
    if kind.weighted:
        assert_same_bits(found["weights"], as_numpy(expected["weights"]))


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 16), ("float16", 131), ("bfloat16", 1)])
def test_a_lookup_widens_every_number_exactly(dtype, width):
    bits = np.arange(65_536, dtype=np.uint16)
    table = np.resize(bits, (65_536 // width + 1, width)).view(format_of(dtype).array)
    ids = np.arange(len(table), dtype=np.int32)
    kernel = compile_kernel(lookup_kernel(width, dtype, "int32"), host_target())
    out = runtime.empty(table.shape, "float32")
    kernel(as_tensor(table), as_tensor(ids), out)
    found = as_numpy(out)
    assert_same_bits(np.nan_to_num(found), np.nan_to_num(table.astype(np.float32)))
    assert (np.isnan(found) == np.isnan(table.astype(np.float32))).all()
