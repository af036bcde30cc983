# SPDX-License-Identifier: Apache-2.0
"""Products of bfloat16 in the three forms: the rule that takes them, and what they compute."""

import numpy as np
import pytest
from tvm import relax
from tvm.target import Target
from tvm.target.codegen import target_has_features

from tests.compiler.schedule.relax_programs import (
    TARGETS,
    assert_close,
    assert_exact,
    compile_main,
    function,
    random_arguments,
    rules_by_kernel,
)
from tests.helpers import slow_except

op = relax.op
HALF = "bfloat16"
BATCHES = (1, 7, 128, 300)
LAYERS = [(13, 64), (367, 40), (479, 3), (1, 33)]
HAS_PAIRS = target_has_features("avx512bf16", TARGETS["host"])
HAS_TILES = target_has_features("amx-bf16", TARGETS["host"])
needs_pairs = pytest.mark.skipif(not HAS_PAIRS, reason="the CPU has no AVX512_BF16")
needs_tiles = pytest.mark.skipif(not HAS_TILES, reason="the CPU has no AMX_BF16")
# With the best instructions that there are, and with the second best.
with_each = pytest.mark.parametrize("target", ["host", pytest.param("no tiles", marks=needs_tiles)])
RULES = {"host": "TileMatmul" if HAS_TILES else "HalfMatmul", "no tiles": "HalfMatmul"}


def half_product(a, b):
    return op.matmul(op.astype(a, HALF), op.astype(b, HALF), out_dtype="float32")


def layer(inputs, outputs):
    """Forward with bias and ReLU, cotangent of x with a mask, cotangent of w."""

    def body(x, w, bias, ct):
        y = op.nn.relu(op.add(half_product(x, op.permute_dims(w)), bias))
        ct_x = half_product(ct, w)
        zero = relax.const(0.0, "float32")
        ct_x = op.where(op.greater(x, zero), ct_x, zero)
        return relax.Tuple([y, ct_x, half_product(op.permute_dims(ct), x)])

    shapes = {"x": ("b", inputs), "w": (outputs, inputs), "bias": (outputs,), "ct": ("b", outputs)}
    return function(shapes, body)


def reference(x, w, bias, ct):
    return [np.maximum(x @ w.T + bias, 0), np.where(x > 0, ct @ w, 0), ct.T @ x]


def two_layers(inputs, hidden, outputs):
    """The result of the first is stored as bfloat16 and read by the second where it lies."""

    def body(x, w1, w2, ct):
        h = op.astype(op.nn.relu(half_product(x, op.permute_dims(w1))), HALF)
        w2_half, ct_half = op.astype(w2, HALF), op.astype(ct, HALF)
        y = op.matmul(h, op.permute_dims(w2_half), out_dtype="float32")
        ct_w2 = op.matmul(op.permute_dims(ct_half), h, out_dtype="float32")
        return relax.Tuple([y, ct_w2])

    shapes = {"x": ("b", inputs), "w1": (hidden, inputs), "w2": (outputs, hidden)}
    return function(shapes | {"ct": ("b", outputs)}, body)


@pytest.mark.parametrize(
    "inputs, outputs, target",
    [
        *slow_except([(367, 40, "host"), (1, 33, "host")], [(*layer, "host") for layer in LAYERS]),
        pytest.param(367, 40, "no tiles", marks=needs_tiles),
    ],
)
def test_one_compile_serves_every_batch_size_in_three_forms(inputs, outputs, target):
    module = layer(inputs, outputs)
    run = compile_main(module, target)
    for batch in BATCHES:
        arguments = random_arguments(module, batch)
        assert_exact(run(*arguments), reference(*(a.astype("float64") for a in arguments)))


@with_each
@pytest.mark.parametrize("batch", slow_except([4097], [2048, 4097]))
def test_a_batch_may_be_long(batch, target):
    module = layer(40, 72)
    arguments = random_arguments(module, batch)
    results = compile_main(module, target)(*arguments)
    assert_exact(results, reference(*(a.astype("float64") for a in arguments)))


@pytest.mark.parametrize(
    "rows, columns, contracted, target",
    [
        *((rows, columns, "b", "host") for rows, columns in [(59, 300), (472, 40), (40, 9)]),
        ("b", 40, 51, "host"),
        (300, "b", 6, "host"),
        pytest.param(59, 300, "b", "no tiles", marks=needs_tiles),
    ],
)
def test_a_weights_gradient_may_have_any_shape(rows, columns, contracted, target):
    module = function(
        {"y": (contracted, rows), "x": (contracted, columns)},
        lambda y, x: half_product(op.permute_dims(y), x),
    )
    run = compile_main(module, target)
    for batch in (1, 37):
        y, x = random_arguments(module, batch)
        assert_exact([run(y, x)], [y.T @ x])


@with_each
def test_every_extent_may_be_known(target):
    module = function(
        {"x": (70, 45), "w": (50, 45)}, lambda x, w: half_product(x, op.permute_dims(w))
    )
    x, w = random_arguments(module, 0)
    assert_exact([compile_main(module, target)(x, w)], [x @ w.T])


@with_each
@pytest.mark.parametrize("hidden", slow_except([13], [64, 13]))
def test_what_is_stored_as_bfloat16_is_read_in_place(hidden, target):
    module = two_layers(24, hidden, 40)
    run = compile_main(module, target)
    for batch in (1, 50):
        x, w1, w2, ct = random_arguments(module, batch)
        x, w1 = np.sign(x), np.sign(w1)  # whole numbers up to 24: bfloat16 holds them exactly
        h = np.maximum(x @ w1.T, 0)
        assert_exact(run(x, w1, w2, ct), [h @ w2.T, ct.T @ h])


@needs_pairs
@with_each
def test_casts_transposes_and_epilogues_become_part_of_the_product(target):
    for module in (layer(24, 40), two_layers(24, 64, 40)):
        assert list(rules_by_kernel(module, target).values()) == [RULES[target]] * 3


@pytest.mark.parametrize("target", slow_except(["avx2"], ["avx2", "plain"]))
def test_a_cpu_without_the_instruction_computes_the_same(target):
    module = layer(37, 21)
    assert "HalfMatmul" not in rules_by_kernel(module, target).values()
    arguments = random_arguments(module, 50)
    results = compile_main(module, target)(*arguments)
    assert_exact(results, reference(*(a.astype("float64") for a in arguments)))


@needs_pairs
@with_each
def test_sums_are_rounded_without_a_bias(target):
    # Of positive terms every truncated sum would be too small; 4096 of them have a clear mean.
    random = np.random.default_rng(0)
    x, w = (random.uniform(0.5, 1, (n, 512)).astype("float32") for n in (64, 64))
    shapes = {"x": ("b", 512), "w": (64, 512)}
    module = function(shapes, lambda x, w: half_product(x, op.permute_dims(w)))
    run = compile_main(module, target)
    exact = round_to_half(x).astype("float64") @ round_to_half(w).astype("float64").T
    errors = (run(x, w) - exact) / exact
    assert np.abs(errors).max() < 512 * 2.0**-24
    assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(errors.size)


@pytest.mark.parametrize("target", ["host", pytest.param("no tiles", marks=needs_tiles), "plain"])
def test_operands_are_rounded_to_nearest_even_and_sums_are_float32(target):
    module = layer(96, 32)
    random = np.random.default_rng(0)
    arguments = [
        random.standard_normal(a.shape).astype("float32") for a in random_arguments(module, 40)
    ]
    x, w, bias, ct = arguments
    results = compile_main(module, target)(*arguments)
    expected = reference(*(round_to_half(a).astype("float64") for a in (x, w)), bias, ct)[:1]
    assert_close(results[:1], expected)


@pytest.mark.parametrize(
    "target, bits",
    [
        ("host", 0xFFFFFFFF),
        pytest.param("no tiles", 0x7F800001, marks=needs_tiles),
        ("plain", 0x7FC00000),
    ],
)
def test_what_is_not_a_number_stays_in_its_row(target, bits):
    module = layer(16, 20)
    arguments = random_arguments(module, 9)
    arguments[0][3] = np.array([bits], np.uint32).view(np.float32)
    forward, _, _ = compile_main(module, target)(*arguments)
    # ReLU may make a NaN zero: TVM assumes there are none. The other rows must not see it.
    others = reference(*(np.delete(a, 3, axis=0) if a.shape[0] == 9 else a for a in arguments))
    assert_exact([np.delete(forward, 3, axis=0)], others[:1])


def round_to_half(x):
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)


@needs_pairs
def test_the_host_is_one_that_has_the_instruction():
    assert RULES["host"] in rules_by_kernel(layer(64, 32)).values()
    assert target_has_features("avx512bf16", Target({"kind": "llvm", "mcpu": "znver5"}))
