# SPDX-License-Identifier: Apache-2.0
"""Ids and gradients of a case's steps, by a distribution and a seed: the same for every arm.

Zipf ranks come from the inverse of the distribution's continuous form and are scattered over the
table, so that hot rows do not share cache lines. Every step has ids of its own, so a table larger
than the caches is read from memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import cycle
from math import gcd
from typing import NamedTuple

import numpy as np

from sparsetrain.compare.case import Case
from sparsetrain.errors import ConfigError
from sparsetrain.runtime import NDArray, as_tensor
from sparsetrain.sparse_tensor import RowSparse

_ZIPF = re.compile(r"zipf(\d+(?:\.\d+)?)")
_GOLDEN = 0.618  # a stride near this share of the table keeps neighbouring ranks far apart
_COTANGENTS = 8  # reused, as a program writes them just before the update reads them


class Batch(NamedTuple):
    """One step's input.

    Parameters
    ----------
    ids : Tensor (N,) int32
        Looked-up rows, bag after bag.
    cotangent : Tensor (N / pooling, D) float32
        Cotangent of each bag's sum.
    gradient : RowSparse
        The table's gradient, which shares the memory of both.
    """

    ids: NDArray
    cotangent: NDArray
    gradient: RowSparse


def make_batches(case: Case, ids: Iterable[np.ndarray]) -> Iterator[Batch]:
    """Yield a batch for each array of ids (N,)."""
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
    """Return the bag that each id belongs to."""
    return as_tensor(np.arange(lookups, dtype=np.int32) // np.int32(pooling))


def draw_ids(case: Case, count: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield the ids (N,) int32 of `count` steps.

    Raises
    ------
    ConfigError
        If `case.skew` names no distribution.
    """
    rng = np.random.default_rng([seed, case.rows, case.lookups])
    exponent = _exponent(case.skew)
    for _ in range(count):
        if exponent is None:
            yield np.full(case.lookups, rng.integers(0, case.rows), np.int32)
        elif exponent == 0:
            yield rng.integers(0, case.rows, case.lookups, dtype=np.int32)
        else:
            ranks = _zipf_ranks(rng, exponent, case.rows, case.lookups)
            yield (ranks * _stride(case.rows) % case.rows).astype(np.int32)


def check_skew(skew: str) -> None:
    """Raise `ConfigError` unless `skew` names a distribution."""
    _exponent(skew)


def _exponent(skew: str) -> float | None:
    """Return the exponent of a distribution: 0 for uniform, None for a single id."""
    if skew in ("uniform", "same"):
        return 0.0 if skew == "uniform" else None
    match = _ZIPF.fullmatch(skew)
    if match is None:
        raise ConfigError(
            f"compare: skew is uniform, same or zipf with a number such as zipf1.05, not {skew!r}"
        )
    return float(match[1])


def _zipf_ranks(rng: np.random.Generator, exponent: float, rows: int, count: int) -> np.ndarray:
    share = rng.random(count)
    rest = 1 - exponent
    if abs(rest) < 1e-9:
        drawn = (rows + 1.0) ** share
    else:
        drawn = (1 + share * ((rows + 1.0) ** rest - 1)) ** (1 / rest)
    return np.minimum(drawn.astype(np.int64) - 1, rows - 1)


def _stride(rows: int) -> int:
    """Return a stride that visits every row of the table once."""
    stride = max(1, int(rows * _GOLDEN))
    while gcd(stride, rows) != 1:
        stride += 1
    return stride
