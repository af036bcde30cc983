# SPDX-License-Identifier: Apache-2.0
"""Halves in kernels: every number there is, the numbers between them, and the law of rounding."""

from functools import cache

import numpy as np
import pytest
from tvm.script.ir_builder import tirx as T

from sparsetrain import runtime
from sparsetrain.kernels.builder import buffer, kernel
from sparsetrain.kernels.table_formats.half import HALVES, narrowed, widened
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target
from sparsetrain.runtime.targets import resolve_target
from tests.kernels.table_formats.in_numpy import largest, neighbours, rounded

LANES = 16
EVERY = np.arange(65_536, dtype=np.uint16).reshape(-1, LANES)
EACH = pytest.mark.parametrize("dtype", HALVES)
# A generic CPU has no instruction for halves: the arithmetic must not need one.
TARGETS = pytest.mark.parametrize("target", ["auto", "llvm"])


@cache
def widen(dtype, target):
    return _kernel(lambda bits: widened(bits, dtype), ("uint16",), "float32", target)


@cache
def narrow(dtype, target="auto"):
    make = lambda value, random: narrowed(value, random, dtype)  # noqa: E731
    return _kernel(make, ("float32", "uint32"), "uint16", target)


def _kernel(make, dtypes, result, target):
    with kernel() as built:
        rows = T.int64()
        given = [buffer(f"x{n}", (rows, LANES), dtype) for n, dtype in enumerate(dtypes)]
        out = buffer("out", (rows, LANES), result)
        with T.parallel(0, rows) as row, T.vectorized(0, LANES) as lane:
            T.buffer_store(out, make(*(array[row, lane] for array in given)), [row, lane])
    target = host_target() if target == "auto" else resolve_target(target)
    compiled = compile_kernel(built.get(), target)

    def run(*arrays):
        found = runtime.empty(arrays[0].shape, result)
        compiled(*map(runtime.as_tensor, arrays), found)
        return runtime.as_numpy(found)

    return run


def numbers(seed):
    """Float32 numbers (N, LANES) of every exponent."""
    bits = np.random.default_rng(seed).integers(0, 2**32, (4096, LANES), dtype=np.uint64)
    found = bits.astype(np.uint32).view(np.float32)
    return np.where(np.isnan(found), np.float32(1), found)


def randoms(seed):
    drawn = np.random.default_rng(seed).integers(0, 2**32, (4096, LANES), dtype=np.uint64)
    return drawn.astype(np.uint32)


@EACH
@TARGETS
def test_every_half_is_widened_as_numpy_does(dtype, target):
    found, expected = widen(dtype, target)(EVERY), EVERY.view(HALVES[dtype].array)
    expected = expected.astype(np.float32)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(found.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])
    assert np.isnan(found[nan]).all()


@EACH
@TARGETS
@pytest.mark.parametrize("random", [0, 1, 2**31, 2**32 - 1])
def test_a_number_that_the_format_holds_is_never_moved(dtype, target, random):
    exact = EVERY.view(HALVES[dtype].array).astype(np.float32)
    found = narrow(dtype, target)(exact, np.full(exact.shape, random, np.uint32))
    nan = np.isnan(exact)
    np.testing.assert_array_equal(found[~nan], EVERY[~nan])
    assert np.isnan(found.view(HALVES[dtype].array)[nan]).all()


@EACH
@TARGETS
def test_rounding_is_that_of_numpy_for_numbers_of_every_size(dtype, target):
    scale = np.exp2(np.random.default_rng(1).integers(-30, 20, (4096, LANES)))
    near = (np.random.default_rng(2).standard_normal(scale.shape) * scale).astype(np.float32)
    for value in (numbers(3), near):
        random = randoms(4)
        found = narrow(dtype, target)(value, random).view(HALVES[dtype].array)
        expected = rounded(value, random, dtype)
        np.testing.assert_array_equal(found.astype(np.float32), expected)
        below, above = neighbours(value, dtype)
        assert ((found.astype(np.float64) == below) | (found.astype(np.float64) == above)).all()


@EACH
def test_the_mean_of_many_roundings_is_the_number(dtype):
    tries = 4096 * LANES
    for number in (1.0003, -0.1, 3e-5, 1e-6, 60_001.7):
        value = np.full((4096, LANES), number, np.float32)
        found = narrow(dtype)(value, randoms(5)).view(HALVES[dtype].array).astype(np.float64)
        below, above = (float(n[0]) for n in neighbours(value[0, :1], dtype))
        share = (float(value[0, 0]) - below) / (above - below)
        sigma = (above - below) * np.sqrt(share * (1 - share) / tries)
        assert abs(found.mean() - float(value[0, 0])) < 4 * sigma + 2.0**-20 * (above - below)


@EACH
@pytest.mark.parametrize("random", [0, 2**32 - 1])
def test_only_what_is_beyond_the_largest_number_becomes_infinite(dtype, random):
    most = np.float32(largest(dtype))
    beyond = np.nextafter(most, np.float32(np.inf))
    value = np.resize(np.float32([most, -most, beyond, -beyond, np.inf]), (1, LANES))
    found = narrow(dtype)(value, np.full(value.shape, random, np.uint32))
    found = found.view(HALVES[dtype].array).astype(np.float32)[0, :5]
    np.testing.assert_array_equal(found, [most, -most, np.inf, -np.inf, np.inf])
