# SPDX-License-Identifier: Apache-2.0
"""Identity of values: kinds of columns, forms of texts, and `Texts` for the key kernel.

Only the kind of a column decides which texts are numbers:

- whole numbers: 12, "12", "012", 12.0 and "12.0" are one value,
- hexadecimal: text of exactly 8 lower-case hex digits is that number, and other text is read as in
  whole numbers; a number from -2**31 to -1 is the unsigned number with the same 32 bits, since
  int32 columns may hold hashes,
- text: a number and its decimal text, 12 and "12", are one value; other text, "012" too, is its
  bytes.

`true` and `false`, also `True` or `TRUE`, are 1 and 0. Numbers have 64 bits; numbers from 2**63 on
are stored by their bits. Nulls and empty text are missing values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

WHOLE, HEXADECIMAL, TEXT = "whole", "hexadecimal", "text"
KINDS = (WHOLE, HEXADECIMAL, TEXT)
MISSING, UNSEEN = 0, 1  # ids of a missing value, and of a value without a row
# Forms: no value, a number in canonical form, a number in any other form, 8 hex digits (which may
# be a number too), and other text.
ABSENT, NUMBER, LOOSE, HEX, OTHER = range(5)


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts (n,) in one buffer.

    Attributes
    ----------
    data : (N,) uint8
        A buffer with their bytes.
    offsets : (n + 1,) int32 or int64
        Where each text begins, and where the last one ends.
    missing : (n,) bool or None
        Which texts are missing, regardless of their bytes.
    """

    data: np.ndarray
    offsets: np.ndarray
    missing: np.ndarray | None = None

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Texts:
        """Join some texts."""
        ends = np.zeros(len(texts) + 1, np.int64)
        np.fromiter(map(len, texts), np.int64, len(texts)).cumsum(out=ends[1:])
        return cls(np.frombuffer(b"".join(texts), np.uint8), ends)


class Entries(NamedTuple):
    """A column's kind, and its values that have a row, each of them once."""

    kind: int  # of `KINDS`
    numbers: np.ndarray  # (n,) int64
    number_ids: np.ndarray  # (n,) int64, 2 or more
    texts: Texts = Texts.of(())
    text_ids: np.ndarray = np.zeros(0, np.int64)  # (m,)
