# SPDX-License-Identifier: Apache-2.0
"""Attention as products and a softmax: TVM's own numbers, and weights that are computed once."""

from itertools import product

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.compiler.schedule.relax_programs import compile_main, function, run_passes
from tests.helpers import UNOPTIMIZED, slow_except

op = relax.op
# Length of q, length of k, heads, width of q and k, width of v.
SIZES = [(5, 9, 2, 8, 3), (9, 5, 1, 7, 4)]
KINDS = {
    "plain": ({}, None),
    "biased": ({}, ("b", "heads", "queries", "keys")),
    "scaled, from the start, one bias for all heads": (
        {"causal_mask": "TopLeft", "scale": 0.3},
        ("b", 1, "queries", "keys"),
    ),
    "from the end": ({"causal_mask": "BottomRight"}, None),
}


def _module(size, kind):
    queries, keys, heads, width, width_of_v = size
    options, bias = KINDS[kind]
    extents = {"queries": queries, "keys": keys, "heads": heads}
    shapes = {
        "q": ("b", queries, heads, width),
        "k": ("b", keys, heads, width),
        "v": ("b", keys, heads, width_of_v),
    }
    if bias is not None:
        shapes["bias"] = tuple(extents.get(n, n) for n in bias)
    return function(shapes, lambda *given: op.nn.attention(*given, **options)), shapes


def _of_tvm(module, *arrays):
    main = relax.VirtualMachine(relax.build(module, UNOPTIMIZED), tvm.cpu())["main"]
    return main(*(tvm.runtime.tensor(a) for a in arrays)).numpy()


QUICK = [(SIZES[0], kind) for kind in KINDS if kind != "plain"]


@pytest.mark.parametrize(("size", "kind"), slow_except(QUICK, product(SIZES, KINDS)))
def test_the_numbers_are_those_of_tvm(size, kind):
    module, shapes = _module(size, kind)
    random = np.random.default_rng(0)
    arrays = [
        random.normal(size=[3 if n == "b" else n for n in shape]).astype("float32")
        for shape in shapes.values()
    ]
    expected = _of_tvm(module, *arrays)
    np.testing.assert_allclose(compile_main(module)(*arrays), expected, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_by_a_width_that_is_not_known_nothing_is_scaled_beforehand():
    module = function(dict.fromkeys("qkv", (2, 5, 1, "b")), op.nn.attention)
    arrays = [
        np.random.default_rng(n).normal(size=(2, 5, 1, 3)).astype("float32") for n in (0, 1, 2)
    ]
    np.testing.assert_allclose(
        compile_main(module)(*arrays), _of_tvm(module, *arrays), rtol=0, atol=2e-6
    )


def _calls(module, name):
    kernels = []
    relax.analysis.post_order_visit(
        module["main"],
        lambda e: (
            kernels.append(e.args[0].name_hint)
            if isinstance(e, relax.Call) and len(e.args) and isinstance(e.args[0], tvm.ir.GlobalVar)
            else None
        ),
    )
    return [kernel for kernel in kernels if name in kernel]


def test_it_is_two_products_and_a_softmax_and_nothing_is_copied():
    module, _ = _module(SIZES[0], "biased")
    lowered = run_passes(module, until="ApplyRules")
    assert len(_calls(lowered, "matmul")) == 2
    assert len(_calls(lowered, "")) == 3
