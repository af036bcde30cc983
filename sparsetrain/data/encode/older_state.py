# SPDX-License-Identifier: Apache-2.0
"""Vocabularies of encoders that were saved before columns had kinds (version 2).

In version 2, text of 8 hex digits was always read as a number. A flag of the column told how 8
decimal digits were read; a flag of the encoder, whether a negative number stood for the hash with
the same 32 bits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sparsetrain.data.columns.counts import are_integers, as_decimals
from sparsetrain.data.columns.vocabulary import Vocabulary
from sparsetrain.data.values.arrow_values import as_binary, hex_digits
from sparsetrain.parsing.identity import HEXADECIMAL, TEXT, WHOLE


def of_version_2(older: Vocabulary, hexadecimal: bool | None, wraps: bool) -> Vocabulary | None:
    """Return a current vocabulary in which all learnt values keep their ids.

    Return None if no kind of column distinguishes these values.
    """
    numbers = older.numbers
    hashes = bool(((numbers >= 2**31) & (numbers < 2**32)).any())
    has_decimal_eights = bool(((numbers >= 10**7) & (numbers < 10**8)).any())
    if hexadecimal and older.texts:
        return _as_text(older)
    if hexadecimal or (wraps and (hashes or hexadecimal is None)):
        is_certain = hexadecimal is not False or not (has_decimal_eights or older.texts)
        return replace(older, kind=HEXADECIMAL) if is_certain else None
    return replace(older, kind=TEXT if older.texts else WHOLE)


def _as_text(older: Vocabulary) -> Vocabulary | None:
    """Return a text vocabulary that has each number in all forms in which it was read."""
    short = (older.numbers >= 0) & (older.numbers < 2**32)
    hexes, ids = older.numbers[short], older.number_ids[short]
    plain, negative = are_integers(hexes), hexes >= 2**31
    numbers = [older.numbers, as_decimals(hexes[plain]), hexes[negative] - 2**32]
    if len(np.unique(np.concatenate(numbers))) < sum(map(len, numbers)):
        return None
    return replace(
        older,
        kind=TEXT,
        numbers=np.concatenate(numbers),
        number_ids=np.concatenate([older.number_ids, ids[plain], ids[negative]]),
        texts=(*older.texts, *as_binary(hex_digits(hexes[~plain])).to_pylist()),
        text_ids=np.concatenate([older.text_ids, ids[~plain]]),
    )
