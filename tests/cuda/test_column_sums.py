# SPDX-License-Identifier: Apache-2.0
"""Sums over the batch, cut into pieces: wide and narrow, of halves, of products with one column."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from sparsetrain.backends.cuda.schedule.long_product import sum_kernel
from sparsetrain.compiler import schedule
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.tensors import BFLOAT16
from tests.cuda import device
from tests.cuda.test_kernels import in_every_order, there
from tests.helpers import slow_except

# Name -> columns, dtype, whether a product with one column: columns of one block and of several,
# in fours and one by one, a single one.
CASES = {
    "wide": (260, "float32", False),
    "narrow": (16, "float32", False),
    "odd": (13, "float32", False),
    "one": (1, "float32", False),
    "halves": (132, "bfloat16", False),
    "weighted": (36, "float32", True),
}


QUICK = ("odd", "halves", "weighted")


def add_sum(builder: relax.BlockBuilder, name: str) -> None:
    columns, dtype, weighted = CASES[name]
    batch = tirx.Var("B", "int64")
    x = relax.Var("x", relax.TensorType((batch, columns), dtype))
    w = relax.Var("w", relax.TensorType((batch, 1), "float32"))
    with builder.function(name, [x, w] if weighted else [x]):
        with builder.dataflow():
            if weighted:
                out = relax.op.matmul(builder.emit(relax.op.permute_dims(w)), x)
            else:
                wide = x if dtype == "float32" else builder.emit(relax.op.astype(x, "float32"))
                out = relax.op.collapse_sum_to(wide, (columns,))
            out = builder.emit_output(builder.emit(out))
        builder.emit_func_output(out)


@pytest.fixture(scope="module")
def machine():
    """Quick sums in one program, the others in another."""
    return device.in_two_programs(QUICK, CASES, add_sum)


BATCHES = [*((name, size) for name in CASES for size in (1, 700)), ("odd", 20_000)]


@pytest.mark.parametrize(
    ("name", "batch"), slow_except([(n, size) for n, size in BATCHES if n in QUICK], BATCHES)
)
def test_columns_are_summed_in_one_order(cuda, machine, name, batch):
    columns, dtype, weighted = CASES[name]
    rng = np.random.default_rng(batch)
    x = rng.standard_normal((batch, columns)).astype("f4")
    w = rng.standard_normal((batch, 1)).astype("f4")
    if dtype == "bfloat16":
        x = x.astype(BFLOAT16)
    arguments = [there(array, "cuda") for array in ([x, w] if weighted else [x])]
    found = in_every_order("cuda", lambda: machine(name)(*arguments).numpy())
    terms = x.astype("f8") * (w if weighted else 1)
    assert (np.abs(found - terms.sum(0)) <= 1e-6 * np.abs(terms).sum(0)).all()


# Pieces; rows and columns: one thread for an element and several, more than a block of elements, in
# fours and one by one.
PIECES = {1: (4, 300), 2: (19, 29), 3: (40, 66), 12: (23, 25), 20: (9, 70), 132: (3, 5)}


@pytest.fixture(scope="module")
def adder():
    """All sums of pieces in one program."""
    with pytest.MonkeyPatch.context() as patch, device.as_gpu(patch) as target:
        builder = relax.BlockBuilder()
        for pieces, shape in PIECES.items():
            parts = relax.Var("parts", relax.TensorType((pieces, *shape), "float32"))
            with builder.function(f"of{pieces}", [parts]):
                with builder.dataflow():
                    kernel = builder.add_func(sum_kernel(shape, pieces), "sum_of_pieces")
                    total = relax.call_tir(kernel, [parts], relax.TensorType(shape, "float32"))
                    out = builder.emit_output(total)
                builder.emit_func_output(out)
        yield build_relax(builder.get(), target, schedule.pipeline(target))


@pytest.mark.parametrize("pieces", PIECES)
def test_pieces_are_summed_in_one_order(cuda, adder, pieces):
    parts = np.random.default_rng(pieces).standard_normal((pieces, *PIECES[pieces])).astype("f4")
    given = there(parts, "cuda")
    found = in_every_order("cuda", lambda: adder[f"of{pieces}"](given).numpy())
    np.testing.assert_allclose(found, parts.astype("f8").sum(0), rtol=1e-5, atol=1e-5)
