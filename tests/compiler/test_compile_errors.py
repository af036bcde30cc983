# SPDX-License-Identifier: Apache-2.0
"""Errors of TVM's compiler become one line that names the operator."""

import numpy as np
import pytest
import tvm
from tvm.relax import op

import sparsetrain as st
from sparsetrain.compiler.compile_errors import naming_operators
from tests.ad.cases import Case, build, sample

CHANNELS = {"x": ("B", 4, 5), "gamma": (4,), "beta": (4,)}
QKV = {"q": (2, 4, 2, 3), "k": (2, 5, 2, 3), "v": (2, 5, 2, 2)}
# name, shapes, body, what the message says
CASES = [
    (
        "a norm that has no float64",
        CHANNELS,
        lambda x, gamma, beta: op.nn.group_norm(op.exp(x), gamma, beta, 2, 1, [2]),
        r"relax.nn.group_norm of \(B, 4, 5\), \(4\) and \(4\): .*float32",
    ),
    (
        "an operator without a kernel",
        {"x": ("B", 3)},
        lambda x: op.add(x, op.ewise_fma(x, x, x)),
        r"relax.ewise_fma of ",
    ),
    (
        "an einsum that TVM does not know",
        {"x": (3, 2), "y": (3, 2)},
        lambda x, y: op.einsum([x, y], "b...,b...->b"),
        r"relax.einsum of \(3, 2\) and \(3, 2\): ",
    ),
    (
        "attention to a window",
        QKV,
        lambda q, k, v: op.nn.attention(q, k, v, causal_mask="TopLeft", window_size=2),
        r"relax.nn.attention of .*sliding-window",
    ),
]


@pytest.mark.parametrize(
    ("shapes", "body", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_operator_is_named_on_one_line(shapes, body, message):
    case = Case("", "", shapes, body)
    with pytest.raises(st.errors.ConfigError, match=f"TVM cannot compile {message}") as caught:
        st.Program(build(case), "loss")(*sample(case))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        st.errors.DataError("ours"),
        OSError("of a file"),
        RuntimeError("InternalError: std::bad_alloc"),
        ZeroDivisionError("of no operator"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_stay_what_they_are(error):
    module = build(Case("", "", {"x": (3,)}, op.exp))
    with (
        pytest.raises(type(error), match=str(error)),
        naming_operators(module, tvm.target.Target("llvm")),
    ):
        raise error


def test_what_compiles_is_not_looked_at(monkeypatch):
    monkeypatch.setattr("sparsetrain.compiler.compile_errors._culprit", None)
    module = build(Case("", "", {"x": (3,)}, op.exp))
    assert np.isfinite(st.Program(module, "loss")({"x": np.ones(3)}, {}).numpy())
