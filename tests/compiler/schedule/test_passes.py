# SPDX-License-Identifier: Apache-2.0
"""The folding of transposes, the choice of a tile, and what the pipeline refuses."""

import pytest
import tvm
from tvm import relax
from tvm.target import Target

from sparsetrain.compiler.schedule import pipeline
from sparsetrain.compiler.schedule.register_tile import RegisterTile, register_tile
from sparsetrain.compiler.schedule.transposes import FoldTransposeIntoMatmul
from sparsetrain.errors import ConfigError
from tests.compiler.schedule.relax_programs import TARGETS, function

op = relax.op


def _operators(module):
    names = []
    relax.analysis.post_order_visit(
        module["main"],
        lambda e: (
            names.append(e.op.name)
            if isinstance(e, relax.Call) and isinstance(e.op, tvm.ir.Op)
            else None
        ),
    )
    return names


@pytest.mark.parametrize(
    "parameters, body, kernel",
    [
        ({"x": ("b", 3), "w": (4, 3)}, lambda x, w: op.matmul(x, op.permute_dims(w)), "nt"),
        ({"x": ("b", 3), "w": ("b", 4)}, lambda x, w: op.matmul(op.permute_dims(x), w), "tn"),
        (
            {"x": (3, "b"), "w": (4, 3)},
            lambda x, w: op.matmul(op.permute_dims(x, [1, 0]), op.permute_dims(w)),
            "tt",
        ),
    ],
)
def test_a_transposed_operand_becomes_a_form_of_product(parameters, body, kernel):
    module = FoldTransposeIntoMatmul()(function(parameters, body))
    module = relax.transform.DeadCodeElimination()(module)
    assert _operators(module) == ["relax.call_tir"]
    assert f"matmul_{kernel}" in {name.name_hint for name in module.get_global_vars()}


def test_a_transpose_that_someone_else_reads_stays_for_them():
    def body(x, w):
        transposed = op.permute_dims(w)
        return relax.Tuple([op.matmul(x, transposed), transposed])

    module = FoldTransposeIntoMatmul()(function({"x": ("b", 3), "w": (4, 3)}, body))
    assert sorted(_operators(module)) == ["relax.call_tir", "relax.permute_dims"]


@pytest.mark.parametrize(
    "parameters, body",
    [
        ({"x": ("b", 3), "w": (3, 4)}, op.matmul),
        (
            {"x": (2, "b", 3), "w": (2, 4, 3)},
            lambda x, w: op.matmul(x, op.permute_dims(w, [0, 2, 1])),
        ),
        ({"x": (3, 3), "w": (3, 3)}, lambda x, w: op.matmul(x, op.permute_dims(w, [0, 1]))),
    ],
)
def test_other_products_are_left_to_legalisation(parameters, body):
    assert "relax.matmul" in _operators(FoldTransposeIntoMatmul()(function(parameters, body)))


@pytest.mark.parametrize(
    "target, dtype, columns, tile",
    [
        ({"kind": "llvm", "mcpu": "znver5"}, "float32", 256, (8, 32)),
        ({"kind": "llvm", "mcpu": "skylake-avx512"}, "float32", None, (8, 32)),
        ({"kind": "llvm", "mcpu": "znver5"}, "float32", 16, (8, 16)),
        ({"kind": "llvm", "mcpu": "znver5"}, "float64", 256, (8, 16)),
        ({"kind": "llvm", "mcpu": "haswell"}, "float32", 256, (6, 16)),
        ({"kind": "llvm", "mcpu": "haswell"}, "float64", 3, (6, 4)),
        ({"kind": "llvm"}, "float32", 256, (6, 8)),
    ],
)
def test_the_register_tile_follows_the_targets_vectors(target, dtype, columns, tile):
    assert register_tile(Target(target), dtype, columns) == RegisterTile(*tile)


def test_a_target_that_is_no_cpu_is_refused_by_name():
    with pytest.raises(ConfigError, match='"c".*is not supported.*llvm'):
        pipeline(Target({"kind": "c"}))


def test_scheduling_twice_gives_the_same_module():
    module = function({"x": ("b", 3), "w": (4, 3)}, lambda x, w: op.matmul(x, op.permute_dims(w)))
    first, second = (pipeline(TARGETS["host"])(module) for _ in range(2))
    tvm.ir.assert_structural_equal(first, second)
