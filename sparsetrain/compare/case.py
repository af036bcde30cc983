# SPDX-License-Identifier: Apache-2.0
"""A case to measure: a table, the ids and gradients of its steps, and the optimizer formula.

Every step has new ids, so rows of a table that is larger than the caches come from memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from sparsetrain.errors import ConfigError
from sparsetrain.optim import OPTIMIZERS
from sparsetrain.runtime import as_tensor
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.system.argument_checks import require_int

MOST_ROWS = 2**31 - 1  # ids are int32
_ZIPF = re.compile(r"zipf(\d+(?:\.\d+)?)")
_STRIDE = 2_654_435_761  # a prime number larger than any number of rows
_COTANGENTS = 8  # reused, so that they are in the caches, as after a reverse pass


@dataclass(frozen=True)
class Case:
    """A table, and the ids and formula of its steps.

    Parameters
    ----------
    rows : int
        Number of rows V of the table.
    lookups : int
        Number of ids N in a step.
    width : int
        Number of float32 values D in a row.
    skew : str
        Distribution of the ids: ``"uniform"``, or ``"zipf1.05"`` with any positive exponent;
        "" for ids that the caller passes to `measure`.
    formula : str
        A name in `sparsetrain.optim.OPTIMIZERS`.
    label : str
        Name of the user's table; "" in a sweep.

    Raises
    ------
    ConfigError
        If a number is out of range, or the distribution or formula is unknown.
    """

    rows: int
    lookups: int = 2048
    width: int = 16
    skew: str = "uniform"
    formula: str = "sgd"
    label: str = ""

    def __post_init__(self) -> None:
        for name in ("rows", "lookups", "width"):
            require_int(f"compare: {name}", getattr(self, name))
        if self.rows > MOST_ROWS:
            raise ConfigError(f"compare: {self.rows:,} rows are more than 32-bit ids can address")
        if self.skew not in ("", "uniform") and _ZIPF.fullmatch(self.skew) is None:
            raise ConfigError(
                f"compare: skew must be uniform, or zipf with a number such as zipf1.05, not "
                f"{self.skew!r}"
            )
        if self.formula not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            raise ConfigError(f"compare: formula must be one of {known}, not {self.formula!r}")

    @property
    def table_bytes(self) -> int:
        """Size of the weights in bytes."""
        return self.rows * self.width * 4

    def __str__(self) -> str:
        name = self.label and f"{self.label}: "
        ids = f"{self.lookups:,} {self.skew or 'given'} ids"
        return f"{name}{self.rows:,} x {self.width}, {ids}, {self.formula}"

    def draw_ids(self, count: int, seed: int = 0) -> Iterator[np.ndarray]:
        """Yield the ids (N,) int32 of `count` steps."""
        rng = np.random.default_rng([seed, self.rows, self.lookups])
        zipf = _ZIPF.fullmatch(self.skew)
        for _ in range(count):
            if zipf is None:
                yield rng.integers(0, self.rows, self.lookups, dtype=np.int32)
            else:
                # Frequent ids are scattered over the table, so that their rows do not share cache
                # lines.
                ranks = _zipf_ranks(rng.random(self.lookups), float(zipf[1]), self.rows)
                yield (ranks * _STRIDE % self.rows).astype(np.int32)

    def gradients(self, ids: Iterable[np.ndarray]) -> Iterator[RowSparse]:
        """Yield a gradient of the table for each array of ids (N,), the same for every arm."""
        rng, shape = np.random.default_rng(0), (self.lookups, self.width)
        cotangents = [as_tensor(rng.standard_normal(shape, "f4")) for _ in range(_COTANGENTS)]
        for array, cotangent in zip(ids, cycle(cotangents), strict=False):
            gradient = RowSparse(as_tensor(array, "int32"), cotangent, self.rows)
            gradient.validate()  # kernels do not check ids, which may come from the caller
            yield gradient


def _zipf_ranks(share: np.ndarray, exponent: float, rows: int) -> np.ndarray:
    """Map uniform numbers to Zipf ranks, by the inverse of the continuous distribution."""
    rest = 1 - exponent
    if abs(rest) < 1e-9:
        drawn = (rows + 1.0) ** share
    else:
        drawn = (1 + share * ((rows + 1.0) ** rest - 1)) ** (1 / rest)
    return np.minimum(drawn.astype(np.int64) - 1, rows - 1)
