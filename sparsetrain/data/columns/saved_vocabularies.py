# SPDX-License-Identifier: Apache-2.0
"""Saved vocabularies: the values of all columns in a few plain arrays.

Column f has the numbers from `number_starts[f]` on, and the texts from `text_starts[f]` on. Texts
are UTF-8 bytes, split by `text_offsets`. Arrays are not trusted: the type, shape and content of
each is checked. If columns share a table, only one of them has its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from sparsetrain.data.columns.vocabulary import FIRST, Vocabulary
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_values import NanRule
from sparsetrain.errors import CheckpointError

_ARRAYS = {"numbers", "number_ids", "number_starts"}
_ARRAYS |= {"texts", "text_offsets", "text_ids", "text_starts"}


def expect(condition: bool, fault: str) -> None:
    """Refuse a saved encoder with this fault."""
    if not condition:
        raise CheckpointError(f"the saved encoder {fault}; take it from a finished run")


def save_vocabularies(vocabularies: Sequence[Vocabulary]) -> dict[str, Array]:
    """Return the values of all vocabularies as arrays."""
    texts = [text for each in vocabularies for text in each.texts]
    return {
        "numbers": np.concatenate([each.numbers for each in vocabularies]),
        "number_ids": np.concatenate([each.number_ids for each in vocabularies]),
        "number_starts": _starts([len(each.numbers) for each in vocabularies]),
        "texts": np.frombuffer(b"".join(texts), dtype=np.uint8),
        "text_offsets": _starts([len(text) for text in texts]),
        "text_ids": np.concatenate([each.text_ids for each in vocabularies]),
        "text_starts": _starts([len(each.texts) for each in vocabularies]),
    }


def _starts(lengths: list[int]) -> Array:
    return np.cumsum([0, *lengths], dtype=np.int64)


def load_vocabularies(
    arrays: Mapping[str, Array],
    kinds: Sequence[str],
    rows: Sequence[int],
    shares: Sequence[float | None],
    nan: NanRule,
) -> list[Vocabulary]:
    """Return vocabularies from saved arrays, their numbers of rows and shares of rare values."""
    expect(arrays.keys() == _ARRAYS, "has unknown or missing arrays")
    for name in sorted(_ARRAYS):
        array, dtype = arrays[name], np.uint8 if name == "texts" else np.int64
        fits = isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == 1
        expect(fits, f"has an array {name!r} of a wrong type")
    whole = arrays["texts"].tobytes()
    cuts = _cut(arrays, "text_offsets", len(whole), len(arrays["text_offsets"]) - 1)
    texts = [whole[cut] for cut in cuts]
    for name, wanted in (("number_ids", len(arrays["numbers"])), ("text_ids", len(texts))):
        expect(len(arrays[name]) == wanted, f"has an array {name!r} of a wrong length")
    places = zip(
        _cut(arrays, "number_starts", len(arrays["numbers"]), len(rows)),
        _cut(arrays, "text_starts", len(texts), len(rows)),
        strict=True,
    )
    return [
        _checked(
            Vocabulary(
                kind,
                arrays["numbers"][numbers].copy(),
                arrays["number_ids"][numbers].copy(),
                tuple(texts[own]),
                arrays["text_ids"][own].copy(),
                count,
                nan,
                share,
            )
        )
        for (numbers, own), kind, count, share in zip(places, kinds, rows, shares, strict=True)
    ]


def _cut(arrays: Mapping[str, Array], name: str, total: int, count: int) -> list[slice]:
    """Return `count` consecutive slices from 0 to `total`, given their starts."""
    starts = arrays[name]
    fits = len(starts) == count + 1 > 0 and starts[0] == 0 and starts[-1] == total
    expect(bool(fits) and bool((np.diff(starts) >= 0).all()), f"has inconsistent {name!r}")
    return [slice(*pair) for pair in pairwise(starts.tolist())]


def _checked(rule: Vocabulary) -> Vocabulary:
    ids = np.concatenate([rule.number_ids, rule.text_ids])
    fits = bool(((ids >= FIRST) & (ids < rule.rows)).all())
    expect(fits, "gives a value a row outside its table")
    distinct = len(np.unique(rule.numbers)) + len({*rule.texts})
    expect(distinct == len(ids), "has one value twice in a column")
    return rule
