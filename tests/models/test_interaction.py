# SPDX-License-Identifier: Apache-2.0
"""The interaction kernels against float64 NumPy, for sizes that fit no tile."""

import numpy as np
import pytest

from sparsetrain.compiler.schedule.register_tile import VectorUnit, vector_unit
from sparsetrain.models.interaction import output_width
from sparsetrain.models.interaction.cpu import Tile, backward_kernel, forward_kernel, select_tile
from sparsetrain.runtime import as_numpy, as_tensor, empty
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target
from sparsetrain.runtime.tensors import leading_rows
from tests.helpers import slow_except
from tests.models.interactions import in_numpy, program, vjp_in_numpy

# Features, width, dtype: around tiles of 4 to 16 rows and the vector of 16 columns.
SIZES = [
    (1, 1, "float32"),
    (4, 17, "float32"),
    (16, 5, "float64"),
    (26, 16, "float32"),
    (33, 131, "float32"),
]
FURTHER = [(2, 16, "float32"), (17, 48, "float32"), (300, 3, "float32")]
EACH = pytest.mark.parametrize(
    ("features", "width", "dtype"), slow_except(SIZES[1:4], [*SIZES, *FURTHER])
)
BATCHES = [1, 2, 37]


def draw(features: int, width: int, dtype: str, batch: int):
    rng = np.random.default_rng(features)
    x, e = rng.standard_normal((batch, width)), rng.standard_normal((batch, features, width))
    cotangent = rng.standard_normal((batch, output_width(features, width)))
    return tuple(array.astype(dtype) for array in (x, e, cotangent))


def assert_close(found, expected, dtype):
    tolerance = {"float32": 2e-4, "float64": 1e-12}[dtype]
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@EACH
def test_every_pair_of_vectors_gives_one_number(features, width, dtype):
    for batch in BATCHES:
        x, e, _ = draw(features, width, dtype, batch)
        found = program(features, width, dtype)[0]({"x": x, "e": e}, {})
        assert_close(as_numpy(found), in_numpy(x.astype("f8"), e.astype("f8")), dtype)


@EACH
def test_the_cotangents_are_those_of_the_pairs(features, width, dtype):
    for batch in BATCHES:
        x, e, cotangent = draw(features, width, dtype, batch)
        gradients = program(features, width, dtype)[1]({"x": x, "e": e}, {"cotangent": cotangent})
        expected = vjp_in_numpy(*(a.astype("f8") for a in (x, e, cotangent)))
        assert_close(as_numpy(gradients[1]["x"]), expected[0], dtype)
        assert_close(as_numpy(gradients[1]["e"]), expected[1], dtype)


@pytest.mark.parametrize(("features", "width"), [(1, 16), (18, 16)])
def test_whole_vectors_stored_for_a_row_end_within_its_sample(features, width):
    x, e, _ = draw(features, width, "float32", 2)
    out = empty((3, output_width(features, width)), "float32")
    as_numpy(out, writable=True)[...] = 7
    tile = select_tile(vector_unit(host_target()))
    kernel = compile_kernel(forward_kernel(features, width, "float32", tile), host_target())
    kernel(as_tensor(x), as_tensor(e), leading_rows(out, 2))
    assert_close(as_numpy(out)[:2], in_numpy(x.astype("f8"), e.astype("f8")), "float32")
    assert (as_numpy(out)[2] == 7).all()


@pytest.mark.parametrize(
    ("features", "width"), slow_except([(5, 18)], [(5, 18), (17, 48), (33, 37)])
)
def test_bits_do_not_depend_on_the_registers(features, width):
    x, e, cotangent = draw(features, width, "float32", 3)
    results = []
    for unit in [(512, 32), (256, 16), (128, 16)]:
        sizes = (features, width, "float32", select_tile(VectorUnit(*unit)))
        outs = [empty(a.shape, "float32") for a in (cotangent, x, e)]
        given = [as_tensor(a) for a in (x, e, cotangent)]
        compile_kernel(forward_kernel(*sizes), host_target())(*given[:2], outs[0])
        compile_kernel(backward_kernel(*sizes), host_target())(*given, *outs[1:])
        results.append([as_numpy(out) for out in outs])
    for other in results[1:]:
        for found, expected in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("unit", "tile", "heights", "rows"),
    [
        ((512, 32), Tile(16, 1, 64), [16], {16: 9, 64: 3}),
        ((256, 16), Tile(6, 2, 16), [5, 5, 6], {16: 4}),
        ((128, 16), Tile(2, 4, 16), [2] * 8, {16: 2}),
    ],
    ids=["AVX-512", "AVX2", "SSE"],
)
def test_sums_fit_the_registers(unit, tile, heights, rows):
    assert select_tile(VectorUnit(*unit)) == tile
    assert tile.forward_rows(16) == heights
    assert {lanes: tile.backward_rows(27, lanes) for lanes in rows} == rows


def test_the_result_begins_with_the_dense_vector_and_goes_on_row_by_row():
    x, e = np.array([[1.0, 0.0]], "f4"), np.array([[[2, 3], [5, 7]]], "f4")
    found = as_numpy(program(2, 2)[0]({"x": x, "e": e}, {}))
    assert found.tolist() == [[1, 0, 2, 5, 2 * 5 + 3 * 7]]


@pytest.mark.parametrize(("features", "width", "columns"), [(26, 16, 367), (1, 1, 2), (3, 8, 14)])
def test_the_result_has_d_plus_all_pairs_columns(features, width, columns):
    assert output_width(features, width) == columns
