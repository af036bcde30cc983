# SPDX-License-Identifier: Apache-2.0
"""A case to measure: a table, the lookups of a step, and the optimizer formula."""

from __future__ import annotations

from dataclasses import dataclass

from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import require_int

FLOAT_BYTES = 4
MOST_ROWS = 2**31 - 1  # ids are int32


@dataclass(frozen=True)
class Case:
    """A table and a kind of step.

    Parameters
    ----------
    rows : int
        V, rows of the table.
    lookups : int
        N, ids in a step over all bags; a multiple of `pooling`.
    width : int
        D, float32 numbers in a row.
    pooling : int
        Ids in a bag.
    skew : str
        Distribution of the ids: ``"uniform"``, ``"zipf1.05"`` with any positive exponent,
        ``"same"`` (all equal), or ``"given"`` for ids that the caller passes to `run`.
    formula : str
        A name in `sparsetrain.optim.OPTIMIZERS`.
    threads : int
        Kernel threads; 0 keeps the current number.
    label : str
        Name of the table.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    rows: int
    lookups: int = 2048
    width: int = 16
    pooling: int = 1
    skew: str = "uniform"
    formula: str = "sgd"
    threads: int = 0
    label: str = "table"

    def __post_init__(self) -> None:
        for name in ("rows", "lookups", "width", "pooling"):
            require_int(f"compare: {name}", getattr(self, name))
        require_int("compare: threads", self.threads, 0)
        if self.rows > MOST_ROWS:
            raise ConfigError(f"compare: {self.rows:,} rows are more than 32-bit ids can address")
        if self.lookups % self.pooling:
            raise ConfigError(
                f"compare: {self.lookups} lookups is not a multiple of the bag size {self.pooling}"
            )

    @property
    def bags(self) -> int:
        """Value rows of a step's gradient."""
        return self.lookups // self.pooling

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.width * FLOAT_BYTES

    @property
    def table_bytes(self) -> int:
        """Bytes of the weights."""
        return self.rows * self.row_bytes

    def __str__(self) -> str:
        bags = f", bags of {self.pooling}" if self.pooling > 1 else ""
        name = "" if self.label == "table" else f"{self.label}: "
        return (
            f"{name}{self.rows:,} x {self.width}, {self.lookups:,} {self.skew} ids{bags}, "
            f"{self.formula}"
        )
