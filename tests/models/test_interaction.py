# SPDX-License-Identifier: Apache-2.0
"""The interaction kernels against float64 NumPy, for sizes that fit no tile."""

import numpy as np
import pytest

from sparsetrain.models.interaction import (
    backward_kernel,
    fits_registers,
    output_width,
    register_backward_kernel,
)
from sparsetrain.runtime import as_numpy, as_tensor, compile_kernel, empty, host_target
from tests.models.interactions import in_numpy, program, vjp_in_numpy

# Features, width, dtype: around the tile of 4 vectors and the vector of 16 columns.
SIZES = [
    (1, 1, "float32"),
    (4, 17, "float32"),
    (16, 5, "float64"),
    (26, 16, "float32"),
    (33, 131, "float32"),
    (300, 3, "float32"),
]
EACH = pytest.mark.parametrize(("features", "width", "dtype"), SIZES)
BATCHES = [1, 2, 37]


def draw(features: int, width: int, dtype: str, batch: int):
    rng = np.random.default_rng(features)
    x, e = rng.standard_normal((batch, width)), rng.standard_normal((batch, features, width))
    cotangent = rng.standard_normal((batch, output_width(features, width)))
    return tuple(array.astype(dtype) for array in (x, e, cotangent))


def assert_close(found, expected, dtype):
    tolerance = {"float32": 2e-4, "float64": 1e-12}[dtype]
    assert found.dtype == dtype
    np.testing.assert_allclose(as_numpy(found), expected, rtol=tolerance, atol=tolerance)


@EACH
def test_every_pair_of_vectors_gives_one_number(features, width, dtype):
    for batch in BATCHES:
        x, e, _ = draw(features, width, dtype, batch)
        found = program(features, width, dtype)[0]({"x": x, "e": e}, {})
        assert_close(found, in_numpy(x.astype("f8"), e.astype("f8")), dtype)


@EACH
def test_the_cotangents_are_those_of_the_pairs(features, width, dtype):
    for batch in BATCHES:
        x, e, cotangent = draw(features, width, dtype, batch)
        gradients = program(features, width, dtype)[1]({"x": x, "e": e}, {"cotangent": cotangent})
        expected = vjp_in_numpy(*(a.astype("f8") for a in (x, e, cotangent)))
        assert_close(gradients[1]["x"], expected[0], dtype)
        assert_close(gradients[1]["e"], expected[1], dtype)


@pytest.mark.parametrize(("features", "width", "dtype"), [(5, 16, "float32"), (3, 8, "float64")])
def test_the_kernel_in_registers_has_the_bits_of_the_general_one(features, width, dtype):
    assert fits_registers(features, width, dtype)
    arrays = [as_tensor(array) for array in draw(features, width, dtype, 37)]
    found = []
    for make in (backward_kernel, register_backward_kernel):
        outputs = [empty((37, width), dtype), empty((37, features, width), dtype)]
        compile_kernel(make(features, width, dtype), host_target())(*arrays, *outputs)
        found.append([as_numpy(output) for output in outputs])
    for general, registers in zip(*found, strict=True):
        np.testing.assert_array_equal(general, registers)


def test_the_result_begins_with_the_dense_vector_and_goes_on_row_by_row():
    x, e = np.array([[1.0, 0.0]], "f4"), np.array([[[2, 3], [5, 7]]], "f4")
    found = as_numpy(program(2, 2)[0]({"x": x, "e": e}, {}))
    assert found.tolist() == [[1, 0, 2, 5, 2 * 5 + 3 * 7]]


@pytest.mark.parametrize(("features", "width", "columns"), [(26, 16, 367), (1, 1, 2), (3, 8, 14)])
def test_the_result_has_d_plus_all_pairs_columns(features, width, columns):
    assert output_width(features, width) == columns
