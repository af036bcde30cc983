# SPDX-License-Identifier: Apache-2.0
"""Vocabularies that grow: values they lack get rows behind those that they have.

No known value changes its row, so whatever was learnt of it stays its own. Cost: the values of the
new data are counted once, and the keys are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sparsetrain.data.encode.counts import Counted
from sparsetrain.data.encode.learn import Bound, count_columns, learn_sizes
from sparsetrain.data.encode.plain_ids import PlainIds
from sparsetrain.data.encode.rules import CategoryRule, CategoryRules
from sparsetrain.data.encode.settings import Settings
from sparsetrain.data.encode.vocabulary import UNSEEN, Vocabulary
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.shared_tables import owners_of
from sparsetrain.data.values.arrays import Array


def extended_rules(
    known: Sequence[CategoryRule],
    parts: Bound,
    settings: Settings,
    schema: Schema,
    names: Sequence[str],
) -> CategoryRules:
    """Rules that give rows to the values of `parts` too; `names` are the encoder's columns."""
    owners = owners_of(names, schema.share_embedding)
    if parts[0][1].encoded:
        pairs = zip(known, learn_sizes(parts, settings, owners), strict=True)
        return tuple(PlainIds(max(old.rows, new.rows)) for old, new in pairs)
    grown: dict[int, Vocabulary] = {}
    for owner, counts in count_columns(parts, settings.nan_rule, owners).items():
        old = known[owner]
        assert isinstance(old, Vocabulary)
        rule = schema.rule(names[owner])
        least, cap = rule.min_count or settings.min_count, rule.max_rows or settings.max_rows
        grown[owner] = extended(old, counts, least, cap)
    return tuple(grown[owner] for owner in owners)


def extended(known: Vocabulary, counts: Counted, min_count: int, cap: int | None) -> Vocabulary:
    """Give rows to values that were seen at least `min_count` times and have none.

    The most frequent one comes first, of equals numbers before texts. Values for which there is no
    room below `cap` rows stay without.
    """
    numbers, times = counts.numbers()
    texts, text_times = counts.texts()
    unknown = known.find_numbers(numbers) == UNSEEN
    unknown_texts = known.find_texts(texts) == UNSEEN
    new_times = np.concatenate([times[unknown], text_times[unknown_texts]])
    room = len(new_times) if cap is None else max(cap - known.rows, 0)
    order = np.argsort(-new_times, kind="stable")
    order = order[new_times[order] >= min_count][:room]
    ids = np.full(len(new_times), UNSEEN)
    ids[order] = known.rows + np.arange(len(order))
    left = int(new_times[ids == UNSEEN].sum()) + counts.left_out()
    seen = int(times.sum() + text_times.sum()) + counts.left_out()
    own = int(unknown.sum())
    number_keys, number_ids = _merged(known.numbers, known.number_ids, numbers[unknown], ids[:own])
    new_texts = [text for text, new in zip(texts, unknown_texts, strict=True) if new]
    kept = [(text, row) for text, row in zip(new_texts, ids[own:], strict=True) if row != UNSEEN]
    return replace(
        known,
        numbers=number_keys,
        number_ids=number_ids,
        texts=known.texts + tuple(text for text, _ in kept),
        text_ids=np.concatenate([known.text_ids, np.array([row for _, row in kept], np.int64)]),
        rows=known.rows + len(order),
        rare_share=left / max(seen, 1),
    )


def _merged(keys: Array, ids: Array, new_keys: Array, new_ids: Array) -> tuple[Array, Array]:
    """Put keys that have got an id among the others, ascending."""
    kept = new_ids != UNSEEN
    keys, ids = np.concatenate([keys, new_keys[kept]]), np.concatenate([ids, new_ids[kept]])
    order = np.argsort(keys, kind="stable")
    return keys[order], ids[order]


def keeps_rows(known: CategoryRule, grown: CategoryRule) -> bool:
    """Whether every value that has a row in `known` has the same in `grown`."""
    if grown.rows < known.rows or type(known) is not type(grown):
        return False
    if isinstance(known, PlainIds) or isinstance(grown, PlainIds):
        return True
    same_numbers = np.array_equal(grown.find_numbers(known.numbers), known.number_ids)
    return same_numbers and np.array_equal(grown.find_texts(known.texts), known.text_ids)
