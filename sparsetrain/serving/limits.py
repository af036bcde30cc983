# SPDX-License-Identifier: Apache-2.0
"""Limits for a client, and for a request in any format, checked before memory is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sparsetrain.errors import DataError

_VALUES = 2_000_000, 20  # most values in a request, or per row of the limit, if that is more


class TooLarge(DataError):
    """A request exceeds a limit; the message names the limit."""


class Most(NamedTuple):
    """The largest allowed request.

    Attributes
    ----------
    rows : int
    values : int
        Values of all columns, including each element of a list; also numbers in the answer.
    bytes : int
        Bytes after decompression, with dictionary texts written out for each row.
    """

    rows: int
    values: int
    bytes: int

    def require(self, **found: int) -> None:
        """Check counts by name.

        Raises
        ------
        TooLarge
            If a count exceeds its limit.
        """
        for name, count in found.items():
            most = getattr(self, name)
            if count > most:
                raise TooLarge(f"the request has more than {most:,} {name}; split it")


@dataclass(frozen=True)
class Limits:
    """Limits for a client.

    Attributes
    ----------
    body : int
        Bytes of a request, both compressed and decompressed.
    seconds : float
        Time for a request and its answer, and until an idle connection is closed.
    connections : int
        Simultaneous connections; further ones get status 503.
    rows : int
        Rows of a request. A request, and its answer, may have 20 times as many values, but at least
        2,000,000.
    """

    body: int = 16 << 20
    seconds: float = 10.0
    connections: int = 512
    rows: int = 100_000

    @property
    def most(self) -> Most:
        """The largest allowed request."""
        return Most(self.rows, max(_VALUES[0], _VALUES[1] * self.rows), self.body)
