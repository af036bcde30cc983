# SPDX-License-Identifier: Apache-2.0
"""Limits of a client, and of one request whatever its format; checked before memory is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sparsetrain.errors import DataError

_VALUES = 2_000_000, 20  # most of a request; or as many times its rows


class TooLarge(DataError):
    """A request has more of something than it may; the message names the limit."""


class Most(NamedTuple):
    """The largest request.

    Attributes
    ----------
    rows : int
    values : int
        Of all columns, with list elements counted one by one; and numbers of the answer.
    bytes : int
        Once decompressed, and with the text of a dictionary written out for each row.
    """

    rows: int
    values: int
    bytes: int

    def require(self, **found: int) -> None:
        """Check counts by name.

        Raises
        ------
        TooLarge
            If one is larger.
        """
        for name, count in found.items():
            most = getattr(self, name)
            if count > most:
                raise TooLarge(f"the request has more than {most:,} {name}; ask in parts")


@dataclass(frozen=True)
class Limits:
    """Limits for a client.

    Attributes
    ----------
    body : int
        Bytes of a request, compressed or not.
    seconds : float
        For a request and its answer; an idle connection is closed after as many.
    connections : int
        At once; further ones are answered with 503.
    rows : int
        Of a request. It has at most 2,000,000 values or 20 times as many, its answer too.
    """

    body: int = 16 << 20
    seconds: float = 10.0
    connections: int = 512
    rows: int = 100_000

    @property
    def most(self) -> Most:
        """The largest request."""
        return Most(self.rows, max(_VALUES[0], _VALUES[1] * self.rows), self.body)
