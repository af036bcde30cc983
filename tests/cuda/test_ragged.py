# SPDX-License-Identifier: Apache-2.0
"""Operators on ragged rows and the softmax over a table: their values and cotangents on the CPU."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.relax import op

from sparsetrain.ad.dense_rules import losses
from sparsetrain.compiler import schedule
from sparsetrain.ops import ragged
from sparsetrain.ops.ragged import operators
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.targets import resolve_target
from tests.cuda import device
from tests.cuda.test_kernels import in_every_order, there
from tests.helpers import slow_except

WIDTHS = (8, 6, 3)  # in fours, in twos, one by one
DISTANCES = 5  # less than the longest row has tokens
RNG = np.random.default_rng(0)
COUNTS = np.array([3, 0, 1, 17, *RNG.integers(0, 9, 80), 0])  # tokens and heads fill three blocks
TAKEN = np.minimum(COUNTS, RNG.integers(0, 4, len(COUNTS)))
LENGTHS = {"N": COUNTS.sum(), "B": len(COUNTS), "M": TAKEN.sum()}


def softmax_loss(builder: relax.BlockBuilder, scores: relax.Expr, items: relax.Expr) -> relax.Expr:
    """The loss, and its derivative by the scores: both overwrite what is theirs alone."""
    own = builder.emit(op.multiply(scores, scores))
    both = builder.emit(losses._softmax_loss(own, items))
    loss, weights = (builder.emit(relax.TupleGetItem(both, n)) for n in range(2))
    return relax.Tuple([loss, builder.emit(losses._scale_rows(weights, loss))])


def plain(function, **attributes):
    return lambda _builder, *arguments: function(*arguments, **attributes)


SOFTMAX, SCALED = {"heads": 2, "causal": 1, "scale": 0.5}, "x k v ends x c factors"
WHOLE = SOFTMAX | {"heads": 1, "causal": 0}
# Name -> the operator, and its arguments.
CASES = {
    "sum": (plain(ragged.ragged_sum), "x ends"),
    "max": (plain(ragged.ragged_max), "x ends"),
    "last": (plain(ragged.ragged_last), "x ends"),
    "expand": (plain(ragged.ragged_expand), "rows ends x"),
    "nonempty": (plain(ragged.ragged_nonempty), "rows ends"),
    "positions": (plain(ragged.ragged_positions), "x ends"),
    "distances": (plain(ragged.ragged_distances), "x ends"),
    "take": (plain(ragged.ragged_take), "x ends places place_ends"),
    "max_back": (plain(operators.max_cotangent), "x ends top rows"),
    "last_back": (plain(operators.last_cotangent), "x ends rows"),
    "take_back": (plain(operators.take_cotangent), "x ends places place_ends taken"),
    "softmax_loss": (softmax_loss, "x items"),
    "attention": (plain(ragged.ragged_attention), "x k v ends"),
    "attention_back": (plain(operators.attention_cotangent, **WHOLE), "x k v ends x c"),
    "scaled": (plain(ragged.ragged_attention, heads=2, causal=True), "x k v ends factors"),
    "scaled_back": (plain(operators.scaled_attention_cotangent, **SOFTMAX), SCALED),
    "silu": (plain(ragged.ragged_silu_attention, heads=2, scale=0.1), "x k v bias ends"),
    "silu_back": (plain(operators.silu_attention_cotangent, **SOFTMAX), "x k v bias ends c"),
}
HEADS = [name for name in CASES if "scaled" in name or "silu" in name]  # two


def values(width: int) -> dict[str, np.ndarray]:
    """Arguments by name; tokens of small whole numbers tie for the largest."""
    shapes = dict.fromkeys("xkvc", ("N", width)) | dict.fromkeys(("rows", "top"), ("B", width))
    shapes |= {"taken": ("M", width), "bias": ("N", DISTANCES), "factors": ("N", 2 * DISTANCES)}
    rng = np.random.default_rng(width)
    found = {
        name: rng.normal(size=(LENGTHS[rows], columns)).astype("f4")
        for name, (rows, columns) in shapes.items()
    }
    found["x"] = rng.integers(-2, 3, found["x"].shape).astype("f4") / 2
    ends = np.cumsum(COUNTS)
    rows = zip(ends - COUNTS, ends, strict=True)
    found["top"] = np.array([found["x"][a:b].max(axis=0, initial=-9) for a, b in rows], "f4")
    places = [rng.integers(0, n, t) for n, t in zip(COUNTS, TAKEN, strict=True)]
    found |= {"ends": ends, "places": np.concatenate(places), "place_ends": np.cumsum(TAKEN)}
    return found | {"items": rng.integers(0, width, LENGTHS["N"])}


def add(width: int, builder: relax.BlockBuilder, name: str) -> None:
    """Emit the function of a case."""
    symbols = {n: tirx.Var(letter, "int64") for letter, n in LENGTHS.items()}
    function, names = CASES[name]
    arrays = [values(width)[given] for given in names.split()]
    arguments = [
        relax.Var(
            f"a{n}", relax.TensorType([symbols.get(e, e) for e in array.shape], str(array.dtype))
        )
        for n, array in enumerate(arrays)
    ]
    with builder.function(name, arguments):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(function(builder, *arguments)))
        builder.emit_func_output(out)


@cache
def machine(width: int, on: str):
    """All functions of a width in one program."""
    names = [name for name in CASES if width % 2 == 0 or name not in HEADS]
    if on == "cuda":
        with device.one_program(names, partial(add, width)) as built:
            return built
    builder, target = relax.BlockBuilder(), resolve_target("cpu")
    for name in names:
        add(width, builder, name)
    return build_relax(builder.get(), target, schedule.pipeline(target))


ALL = [(name, width) for width in WIDTHS for name in CASES if width % 2 == 0 or name not in HEADS]


@pytest.mark.parametrize(("name", "width"), slow_except([(n, 8) for n in CASES], ALL))
def test_an_operator_gives_the_numbers_of_the_cpu(cuda, name, width):
    arrays = [values(width)[given] for given in CASES[name][1].split()]

    def computed(on: str) -> np.ndarray:
        found = machine(width, on)[name](*(there(array, on) for array in arrays))
        several = [found] if hasattr(found, "numpy") else found
        return np.concatenate([array.numpy().ravel() for array in several])

    found = in_every_order("cuda", lambda: computed("cuda"))
    np.testing.assert_allclose(found, computed("cpu"), rtol=1e-5, atol=1e-5)


def test_rows_without_any_token_give_zeros(cuda):
    ends, x = np.zeros(4, "i8"), np.zeros((0, 8), "f4")
    for name in ("sum", "max", "last"):
        found = machine(8, "cuda")[name](there(x, "cuda"), there(ends, "cuda"))
        np.testing.assert_array_equal(found.numpy(), np.zeros((4, 8)))
    found = machine(8, "cuda")["attention"](*[there(x, "cuda")] * 3, there(ends, "cuda"))
    assert found.shape == (0, 8)
