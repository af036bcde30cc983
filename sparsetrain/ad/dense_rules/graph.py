# SPDX-License-Identifier: Apache-2.0
"""Reverse rule of a graph's sparse matrix times a dense one."""

from __future__ import annotations

from typing import Any

from tvm import relax

from sparsetrain.ops.graph import csr_product


def _csr_product(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y = A x``. Backward: ``A' cotangent``."""
    columns, ends, transposed_columns, transposed_ends = call.args[1:]
    back = csr_product(cotangent, transposed_columns, transposed_ends, columns, ends)
    return [back, None, None, None, None]


RULES = {"relax.sparsetrain.csr_product": _csr_product}
