# SPDX-License-Identifier: Apache-2.0
"""Instructions for half-precision products that a target is said to have."""

import pytest
from tvm.target import Target

from sparsetrain.backends.cuda.device import has_tensor_cores
from sparsetrain.compiler.precision import lacks
from sparsetrain.runtime import host


def cpu(name, *changes):
    return Target({"kind": "llvm", "mcpu": name, "mattr": [*changes]})


def gpu(arch):
    return Target({"kind": "cuda", "arch": arch})


# Target -> whether it has pairs, tiles, tensor cores.
HAS = [
    (None, (False, False, False)),
    (Target("llvm"), (False, False, False)),
    (cpu("znver3"), (False, False, False)),
    (cpu("znver5"), (True, False, False)),
    (cpu("sapphirerapids"), (True, True, False)),
    (cpu("sapphirerapids", "-amx-bf16"), (True, False, False)),
    (cpu("sapphirerapids", "-avx512bf16"), (False, False, False)),  # nothing would round for tiles
    (gpu("sm_75"), (False, False, False)),
    (gpu("sm_80"), (False, False, True)),
    (gpu("sm_90a"), (False, False, True)),
]


@pytest.mark.parametrize("target, has", HAS, ids=[str(target) for target, _ in HAS])
def test_a_target_has_the_instructions_that_it_names(target, has):
    ask = (
        host.has_bf16_dot,
        host.has_amx_tiles,
        has_tensor_cores,
    )
    assert tuple(each(target) for each in ask) == has


MISSING = [
    ("bfloat16", cpu("znver5"), None),
    ("bfloat16", cpu("znver3"), "the target znver3 has no AVX512_BF16 instructions"),
    ("bfloat16", Target("llvm"), "the target llvm has no AVX512_BF16 instructions"),
    ("float16", cpu("znver5"), "no llvm target computes products of float16"),
    ("float16", gpu("sm_90"), None),
    ("float16", gpu("sm_75"), "a device of sm_75 has no tensor cores for float16"),
]


@pytest.mark.parametrize("dtype, target, problem", MISSING)
def test_what_a_target_lacks_for_a_dtype_is_said_in_words(dtype, target, problem):
    assert lacks(dtype, target) == problem
