# SPDX-License-Identifier: Apache-2.0
"""Columns of the dot interaction's result: the dense vector, then the pairs."""

from typing import Any


def output_width(features: int, width: int) -> int:
    """Columns of the result for F embeddings of width D: ``D + F (F + 1) / 2``."""
    return width + features * (features + 1) // 2


def pair_column(width: int, i: Any, j: Any) -> Any:
    """Column of the pair i > j, integers or expressions; vector 0 is the dense one."""
    return width + i * (i - 1) // 2 + j
