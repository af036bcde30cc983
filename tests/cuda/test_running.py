# SPDX-License-Identifier: Apache-2.0
"""Running sums: every axis, short and long, in several orders of threads, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from tests.cuda import device
from tests.cuda.test_kernels import in_every_order, there

# Name -> shape, None for the batch; axis; further options.
CASES = {
    "rows": ((None, 7), 0, {}),
    "columns": ((None, 7), 1, {}),
    "all": ((None, 7), None, {}),
    "vector": ((None,), 0, {}),
    "middle": ((3, None, 5), -2, {}),
    "exclusive": ((None, 7), 0, {"exclusive": True}),
    "whole numbers": ((None, 7), -1, {"dtype": "int64"}),
}


def add_sum(builder: relax.BlockBuilder, name: str) -> None:
    """A function of one running sum."""
    shape, axis, options = CASES[name]
    batch = tirx.Var("B", "int64")
    extents = [batch if extent is None else extent for extent in shape]
    x = relax.Var("x", relax.TensorType(extents, "float32"))
    with builder.function(name.replace(" ", "_"), [x]):
        with builder.dataflow():
            given = relax.op.astype(x, "int32") if "dtype" in options else x
            out = builder.emit_output(relax.op.cumsum(builder.emit(given), axis, **options))
        builder.emit_func_output(out)


@pytest.fixture(scope="module")
def machine():
    """All sums in one program."""
    with device.one_program(CASES, add_sum) as built:
        yield built


@pytest.mark.parametrize("batch", [1, 300])
@pytest.mark.parametrize("name", CASES)
def test_each_place_holds_the_sum_up_to_it(cuda, machine, name, batch):
    shape, axis, options = CASES[name]
    extents = [batch if extent is None else extent for extent in shape]
    x = np.random.default_rng(batch).uniform(-9, 9, extents).astype("f4")
    argument, function = there(x, "cuda"), machine[name.replace(" ", "_")]
    found = in_every_order("cuda", lambda: function(argument).numpy())
    wide = x.astype("i4").astype("i8") if "dtype" in options else x.astype("f8")
    expected = np.cumsum(wide, axis)
    if options.get("exclusive"):
        expected = expected - wide
    assert found.dtype == ("int64" if "dtype" in options else "float32")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)
