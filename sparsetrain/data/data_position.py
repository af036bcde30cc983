# SPDX-License-Identifier: Apache-2.0
"""`Position`: a point between two batches of an epoch, for saving and resuming."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sparsetrain.errors import CheckpointError


class Position(NamedTuple):
    """A place between two batches: rows in, not batches, so the batch size may change.

    Attributes
    ----------
    epoch : int
    row : int
        Rows of the epoch, in its order, that come before.
    batch : int
        Batches that come before; what counts for batches that the user makes.

    Examples
    --------
    >>> Position.from_dict(Position(1, 256, 2).to_dict())
    Position(epoch=1, row=256, batch=2)
    """

    epoch: int = 0
    row: int = 0
    batch: int = 0

    def to_dict(self) -> dict[str, int]:
        """Return plain values that fit JSON."""
        return self._asdict()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Position:
        """Rebuild a position from what `to_dict` gave.

        Raises
        ------
        CheckpointError
            If a value is missing, unknown, no whole number or negative.
        """
        known = isinstance(values, Mapping) and values.keys() == set(cls._fields)
        if not known or not all(type(n) is int and n >= 0 for n in values.values()):
            raise CheckpointError(f"a saved position is damaged: {values!r}")
        return cls(**values)
