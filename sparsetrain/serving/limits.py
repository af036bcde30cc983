# SPDX-License-Identifier: Apache-2.0
"""Sizes that a request may have, whatever its format; checked before memory is taken for it."""

from __future__ import annotations

from typing import NamedTuple

from sparsetrain.errors import DataError


class TooLarge(DataError):
    """A request has more of something than it may; the message names the limit."""


class Most(NamedTuple):
    """The largest request.

    Attributes
    ----------
    rows : int
    values : int
        Of all columns, those of lists one by one; numbers of the answer.
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
