# SPDX-License-Identifier: Apache-2.0
"""Convolutions and their derivatives: right for every stride, dilation, padding and layout."""

import numpy as np
import pytest
from tvm.relax import op

from sparsetrain.compiler.schedule.convolution.grid import NOWHERE, reading, run_of, spreading
from sparsetrain.ops.windows import Windows
from tests.compiler.schedule.convolutions import Case, Reference, arranged, forms
from tests.compiler.schedule.relax_programs import (
    assert_exact,
    compile_main,
    function,
    random_arguments,
    run_passes,
)


def _same(padding, **more):
    return {"padding": padding, **more}


IMAGES = "NCHW", "OIHW"
CASES = {
    "a batch of several blocks": Case((5, 50), (7, 5, 3), _same((1, 1)), batch=45),
    "dilated, channels last": Case(
        (4, 20), (6, 4, 3), _same((4, 3), dilation=(4,)), ("NWC", "WIO")
    ),
    "strides and groups": Case((6, 21), (4, 3, 3), _same((1, 2), strides=(2,), groups=2)),
    "gaps between windows": Case((2, 17), (3, 2, 2), _same((0, 1), strides=(3,)), target="plain"),
    "strides beside dilation": Case((3, 19), (2, 3, 4), _same((3, 1), strides=(4,), dilation=(6,))),
    "a channel each": Case((9, 12), (9, 1, 3), _same((1, 1), groups=9), dtype="float64"),
    "an image": Case((8, 9, 11), (16, 8, 3, 3), _same((1, 1, 1, 1)), IMAGES, target="avx2"),
    "an image, strided, channels last": Case(
        (3, 12, 13),
        (5, 3, 5, 4),
        _same((2, 1, 2, 0), strides=(2, 3), dilation=(1, 2)),
        ("NHWC", "HWIO"),
    ),
    "windows as wide as the image": Case((2, 6, 8), (5, 2, 3, 8), {}, IMAGES, batch=70),
    "a volume": Case((2, 3, 5, 4), (3, 2, 2, 3, 2), _same((1, 1, 0, 0, 1, 1)), ("NCDHW", "OIDHW")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_convolution_and_both_cotangents_are_those_of_the_definition(case):
    module = forms(case)
    run = compile_main(module, case.target)
    for batch in (0, case.batch):
        arguments = random_arguments(module, batch)
        assert_exact(run(*arguments), _expected(case, arguments))


def _expected(case, arguments):
    """In float64, of channels first."""
    layouts = case.layouts[0], case.layouts[1], case.layouts[0]
    x, w, y = (
        arranged(array.astype("f8"), layout, plain)
        for array, layout, plain in zip(arguments, layouts, case.plain, strict=True)
    )
    reference = Reference(x, w, **case.whole)
    found = *reference.cotangents(y), reference.output()
    return [
        arranged(array, plain, layout)
        for array, plain, layout in zip(found, case.plain, layouts, strict=True)
    ]


def test_a_transposed_convolution_is_the_other_way_round():
    attributes = {"strides": (2,), "padding": (1, 0)}
    module = function(
        {"y": ("b", 4, 6), "w": (4, 3, 3)},
        lambda y, w: op.nn.conv1d_transpose(y, w, output_padding=1, **attributes),
    )
    y, w = random_arguments(module, 5)
    x = np.zeros((5, 3, 13))
    expected, _ = Reference(x, w.astype("f8"), dilation=(1,), **attributes).cotangents(y)
    assert_exact([compile_main(module)(y, w)], [expected])


# Small side, taps, stride, dilation, padding.
AXES = [(9, 3, 1, 1, 1), (6, 3, 2, 1, 1), (5, 2, 3, 1, 0), (4, 4, 4, 6, 3), (1, 5, 2, 2, 1)]


@pytest.mark.parametrize(("small", "taps", "stride", "dilation", "padding"), AXES)
def test_on_a_grid_a_tap_is_a_row_and_an_offset(small, taps, stride, dilation, padding):
    large = (small - 1) * stride + (taps - 1) * dilation + 1 - padding
    windows = Windows([stride], [dilation], [padding])
    seen = {
        (o, w, k)
        for o in range(small)
        for k in range(taps)
        if 0 <= (w := o * stride + k * dilation - padding) < large
    }
    down, up = (make(windows, ([small], [large]), [taps]) for make in (reading, spreading))
    assert {(o, w, k) for o, w, k in _sums(down)} == seen
    assert {(o, w, k) for w, o, k in _sums(up)} == seen


def _sums(grid):
    """Each place of the result with a place of the source that it sees, and by which tap."""
    for place, (phase, position) in enumerate(grid.out):
        for taps in grid.taps:
            if phase not in taps.phases:
                continue
            for (row, offset), tap in zip(
                taps.terms, taps.numbers[taps.phases.index(phase)], strict=True
            ):
                source = grid.source[row, position + offset]
                if source != NOWHERE:
                    yield place, int(source), int(tap)


@pytest.mark.parametrize(
    ("shape", "dtype", "taken"),
    [
        (("b", 3, 8), "float32", True),
        ((2, 3, "b"), "float32", False),
        (("b", 3, 8), "float16", False),
    ],
    ids=["a batch", "a length that is not known", "halves"],
)
def test_what_the_kernels_do_not_take_stays_loops(shape, dtype, taken):
    module = function({"x": shape, "w": (4, 3, 3)}, op.nn.conv1d, dtype)
    names = {var.name_hint for var, _ in run_passes(module, "ApplyRules").functions_items()}
    assert ("convolution" in names) is taken


@pytest.mark.parametrize(
    ("shape", "layouts"),
    [
        ((6, 7), {"out_layout": "NHWC"}),
        ((7, 6), {"data_layout": "NCWH"}),
        ((4096, 8192), {}),
    ],
    ids=["a result of another layout", "lines of columns", "what no thread should copy"],
)
def test_of_images_too(shape, layouts):
    shapes = {"x": ("b", 3, *shape), "w": (4, 3, 3, 3)}
    module = function(shapes, lambda x, w: op.nn.conv2d(x, w, **layouts))
    names = {var.name_hint for var, _ in run_passes(module, "ApplyRules").functions_items()}
    assert "convolution" not in names


@pytest.mark.parametrize(
    ("places", "run"),
    [
        ([[0, 1, 2, 3]], 4),
        ([[-1, -1, 0, 1, 2, 3]], 2),
        ([[-1, 0, 1]], 1),
        ([[0, 1, 4, 5], [2, 3, -1, -1]], 2),
        ([[-1, -1]], 1),
    ],
)
def test_what_lies_side_by_side_is_copied_in_lines(places, run):
    assert run_of(np.array(places)) == run
