# SPDX-License-Identifier: Apache-2.0
"""What a step starts from: the ids it looked up, and the cotangent of what it read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import cycle
from typing import NamedTuple

import numpy as np

from sparsetrain.compare.case import Case
from sparsetrain.runtime import NDArray, as_tensor
from sparsetrain.sparse_tensor import RowSparse

_COTANGENTS = 8  # a program writes it just before the update reads it, so these may be warm


class Batch(NamedTuple):
    """One step's input.

    Parameters
    ----------
    ids : Tensor (N,) int32
        Looked-up rows, bag after bag.
    cotangent : Tensor (N / pooling, D) float32
        Of each bag's sum.
    gradient : RowSparse
        The table's gradient: both of them, nothing copied.
    """

    ids: NDArray
    cotangent: NDArray
    gradient: RowSparse


def make_batches(case: Case, ids: Iterable[np.ndarray]) -> Iterator[Batch]:
    """Yield a batch for each array of ids."""
    cotangents = cycle(_cotangents(case.bags, case.width))
    source = _source(case.lookups, case.pooling) if case.pooling > 1 else None
    for array, cotangent in zip(ids, cotangents, strict=False):
        rows = as_tensor(array, "int32")
        yield Batch(rows, cotangent, RowSparse(rows, cotangent, case.rows, source))


@lru_cache(maxsize=2)
def _cotangents(bags: int, width: int) -> list[NDArray]:
    rng = np.random.default_rng(0)
    return [as_tensor(rng.standard_normal((bags, width), "f4")) for _ in range(_COTANGENTS)]


@lru_cache(maxsize=2)
def _source(lookups: int, pooling: int) -> NDArray:
    """The bag that each id belongs to."""
    return as_tensor(np.arange(lookups, dtype=np.int32) // np.int32(pooling))
