# SPDX-License-Identifier: Apache-2.0
"""Products of batches read and write permuted tensors where they lie: no transpose is left."""

import numpy as np
import pytest
from tvm import relax

from tests.compiler.schedule.relax_programs import (
    assert_exact,
    compile_main,
    function,
    random_arguments,
    rules_by_kernel,
)

op = relax.op
HEADS = [0, 2, 1, 3]  # (B, length, heads, D) to (B, heads, length, D), and back
MATRICES = [0, 1, 3, 2]


def _permuted(x, *orders):
    for axes in orders:
        x = relax.BlockBuilder.current().emit(op.permute_dims(x, axes))
    return x


def _product(x, y):
    return relax.BlockBuilder.current().emit(op.matmul(x, y))


# name -> (shapes of x and y, program, the same in letters)
CASES = {
    "NT": (
        [("b", 5, 12), ("b", 9, 12)],
        lambda x, y: op.matmul(x, _permuted(y, [0, 2, 1])),
        "bik,bjk->bij",
    ),
    "TN": (
        [("b", 12, 5), ("b", 12, 40)],
        lambda x, y: op.matmul(_permuted(x, [0, 2, 1]), y),
        "bki,bkj->bij",
    ),
    "TT": (
        [("b", 12, 5), ("b", 19, 12)],
        lambda x, y: op.matmul(_permuted(x, [0, 2, 1]), _permuted(y, [0, 2, 1])),
        "bki,bjk->bij",
    ),
    "scores of heads": (
        [("b", 7, 2, 12), ("b", 19, 2, 12)],
        lambda x, y: op.matmul(_permuted(x, HEADS), _permuted(y, HEADS, MATRICES)),
        "blhd,bmhd->bhlm",
    ),
    "heads put together again": (
        [("b", 2, 7, 19), ("b", 19, 2, 12)],
        lambda x, y: op.permute_dims(_product(x, _permuted(y, HEADS)), HEADS),
        "bhlm,bmhd->blhd",
    ),
    "gradient of keys": (
        [("b", 2, 19, 7), ("b", 19, 2, 32)],
        lambda x, y: op.permute_dims(_product(_permuted(x, MATRICES), _permuted(y, HEADS)), HEADS),
        "bhml,bmhd->blhd",
    ),
    "one head": (
        [("b", 7, 1, 12), ("b", 19, 1, 12)],
        lambda x, y: op.matmul(_permuted(x, HEADS), _permuted(y, HEADS, MATRICES)),
        "blhd,bmhd->bhlm",
    ),
    "gradient of the keys of one head": (
        [("b", 1, 19, 7), ("b", 19, 1, 32)],
        lambda x, y: op.permute_dims(_product(_permuted(x, MATRICES), _permuted(y, HEADS)), HEADS),
        "bhml,bmhd->blhd",
    ),
    "an einsum": (
        [("b", 7, 2, 12), ("b", 19, 2, 12)],
        lambda x, y: op.einsum([x, y], "blhd,bmhd->bhlm"),
        "blhd,bmhd->bhlm",
    ),
}


@pytest.mark.parametrize("name, target", [*((name, "host") for name in CASES), ("TT", "avx2")])
def test_a_permuted_product_is_one_kernel(name, target):
    shapes, body, letters = CASES[name]
    module = function(dict(zip("xy", shapes, strict=True)), body)
    assert list(rules_by_kernel(module, target).values()) == ["Matmul"]
    run = compile_main(module, target)
    for batch in (1, 3):
        arguments = random_arguments(module, batch)
        assert_exact([run(*arguments)], [np.einsum(letters, *arguments)])


@pytest.mark.parametrize(
    ("shapes", "body", "letters"),
    [
        (
            [(12, 9, "b"), (9, 8, "b")],
            lambda x, y: op.matmul(_permuted(x, [2, 0, 1]), _permuted(y, [2, 0, 1])),
            "ikb,kjb->bij",
        ),
        (
            [("b", 5, 12), ("b", 12, 9)],
            lambda x, y: op.permute_dims(_product(x, y), [0, 2, 1]),
            "bik,bkj->bji",
        ),
    ],
    ids=["the batch is last", "columns are not last"],
)
def test_what_a_schedule_could_not_read_or_write_stays_a_copy(shapes, body, letters):
    module = function(dict(zip("xy", shapes, strict=True)), body)
    assert "Elementwise" in rules_by_kernel(module).values()
    arguments = random_arguments(module, 3)
    assert_exact([compile_main(module)(*arguments)], [np.einsum(letters, *arguments)])


def test_a_permuted_result_that_someone_else_reads_in_order_is_written_so():
    def body(x, y):
        product = _product(x, y)
        return relax.Tuple([op.permute_dims(product, HEADS), product])

    module = function({"x": ("b", 2, 7, 5), "y": ("b", 2, 5, 9)}, body)
    x, y = random_arguments(module, 3)
    assert_exact(compile_main(module)(x, y), [(x @ y).transpose(HEADS), x @ y])
