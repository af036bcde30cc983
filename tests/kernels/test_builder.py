# SPDX-License-Identifier: Apache-2.0
"""Kernels in TVMScript are parsed as TVM parses them, without a look at who calls."""

import inspect

import pytest
from tvm.script import tirx as T

from sparsetrain.kernels import builder


def of_ours(width: int):
    @builder.prim_func(s_tir=True, private=True)
    def twice(source: T.handle, target: T.handle):
        n = T.int64()
        A = T.match_buffer(source, (n, width), "float32")
        B = T.match_buffer(target, (n, width), "float32")
        for i in T.parallel(n):
            for j in T.serial(width):
                B[i, j] = A[i, j] + A[i, j]

    return twice


def of_tvm(width: int):
    @T.prim_func(s_tir=True, private=True)
    def twice(source: T.handle, target: T.handle):
        n = T.int64()
        A = T.match_buffer(source, (n, width), "float32")
        B = T.match_buffer(target, (n, width), "float32")
        for i in T.parallel(n):
            for j in T.serial(width):
                B[i, j] = A[i, j] + A[i, j]

    return twice


def test_a_kernel_is_the_one_that_tvm_parses_and_no_line_of_a_caller_is_looked_up(monkeypatch):
    expected = of_tvm(3).script()
    monkeypatch.setattr(inspect, "stack", lambda *_: pytest.fail("asked for the stack"))
    assert of_ours(3).script() == expected
