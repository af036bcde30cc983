# SPDX-License-Identifier: Apache-2.0
"""Elementwise kernels: masks and casts of matrices, broadcast rows and columns, odd widths."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from sparsetrain import runtime
from sparsetrain.compiler import schedule
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.tensors import BFLOAT16
from tests.cuda import device
from tests.cuda.test_kernels import in_every_order, there

WIDTHS = (12, 13)  # in fours, and one by one


def add_mask(builder: relax.BlockBuilder, width: int) -> None:
    """``bfloat16(where(x > 0, c w, 0) + m)``."""
    batch = tirx.Var("B", "int64")
    shapes = {"x": (batch, width), "c": (batch, 1), "w": (width,), "m": (batch, width)}
    dtypes = {"m": "bfloat16"}
    arguments = [
        relax.Var(name, relax.TensorType(shape, dtypes.get(name, "float32")))
        for name, shape in shapes.items()
    ]
    x, c, w, m = arguments
    zero = relax.const(0.0, "float32")
    with builder.function(f"mask{width}", arguments):
        with builder.dataflow():
            positive = builder.emit(relax.op.greater(x, zero))
            masked = builder.emit(relax.op.where(positive, builder.emit(c * w), zero))
            total = builder.emit(masked + builder.emit(relax.op.astype(m, "float32")))
            out = builder.emit_output(relax.op.astype(total, "bfloat16"))
        builder.emit_func_output(out)


def add_roots(builder: relax.BlockBuilder) -> None:
    """``rsqrt(rsqrt(x))``, for which the emulator, as CUDA, has no exact function."""
    x = relax.Var("x", relax.TensorType((tirx.Var("B", "int64"), 12), "float32"))
    with builder.function("roots", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.rsqrt(builder.emit(relax.op.rsqrt(x))))
        builder.emit_func_output(out)


@pytest.fixture(scope="module")
def machine():
    """All functions in one program."""
    with pytest.MonkeyPatch.context() as patch, device.as_gpu(patch) as target:
        builder = relax.BlockBuilder()
        for width in WIDTHS:
            add_mask(builder, width)
        add_roots(builder)
        yield build_relax(builder.get(), target, schedule.pipeline(target))


@pytest.mark.parametrize("width", WIDTHS)
def test_every_element_is_computed_once(cuda, machine, width):
    rng = np.random.default_rng(width)
    shapes = {"x": (517, width), "c": (517, 1), "w": (width,), "m": (517, width)}
    x, c, w, m = (rng.standard_normal(shape).astype("f4") for shape in shapes.values())
    m = m.astype(BFLOAT16)
    arguments = [there(array, "cuda") for array in (x, c, w, m)]

    def masked() -> np.ndarray:
        return runtime.as_numpy(machine[f"mask{width}"](*arguments)).view("u2")

    expected = (np.where(x > 0, c * w, 0) + m.astype("f4")).astype(BFLOAT16)
    np.testing.assert_array_equal(in_every_order("cuda", masked), expected.view("u2"))


def test_a_reciprocal_root_is_rounded_as_on_the_cpu(cuda, machine):
    x = np.random.default_rng(0).uniform(0.1, 9, (40, 12)).astype("f4")
    found = machine["roots"](there(x, "cuda")).numpy()
    np.testing.assert_array_equal(found, 1 / np.sqrt(1 / np.sqrt(x)))
