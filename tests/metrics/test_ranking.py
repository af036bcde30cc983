# SPDX-License-Identifier: Apache-2.0
"""Ranking metrics equal their definitions, worked out user by user on a sorted list."""

import math

import numpy as np
import pytest

from sparsetrain.data import Ragged
from sparsetrain.errors import ConfigError, DataError, NumericalError
from sparsetrain.metrics import RankingMetrics, rank_items, ranking
from sparsetrain.metrics.ranking import METRICS

USERS, ITEMS = 60, 40


def bags(lists) -> Ragged:
    lists = [np.asarray(items, np.int64) for items in lists]
    return Ragged(np.concatenate(lists), np.cumsum([0, *map(len, lists)]))


def of_user(scores, chosen, seen, k) -> dict[str, float]:
    """The definitions, of one user's list sorted best first; items not chosen win ties."""
    chosen, ranked = (
        set(chosen),
        [i for i in range(len(scores)) if i not in set(seen) - set(chosen)],
    )
    ranked.sort(key=lambda i: (-scores[i], i in chosen))
    hits = [rank for rank, item in enumerate(ranked[:k], 1) if item in chosen]
    most = min(len(chosen), k)
    return {
        "hr": float(bool(hits)),
        "recall": len(hits) / len(chosen),
        "precision": len(hits) / k,
        "mrr": 1 / hits[0] if hits else 0.0,
        "ndcg": sum(1 / math.log2(rank + 1) for rank in hits)
        / sum(1 / math.log2(rank + 1) for rank in range(1, most + 1)),
        "map": sum(n / rank for n, rank in enumerate(hits, 1)) / most,
    }


def drawn():
    rng = np.random.default_rng(0)
    users, items = (rng.integers(-2, 3, (n, 4)).astype(np.float32) for n in (USERS, ITEMS))
    chosen = [rng.integers(0, ITEMS, rng.integers(0, 6)) for _ in range(USERS)]  # some twice
    seen = [rng.integers(0, ITEMS, rng.integers(0, 12)) for _ in range(USERS)]
    return users, items, chosen, seen


@pytest.mark.parametrize("block", [1 << 22, 7 * ITEMS])
def test_full_ranking_equals_the_definitions_with_ties_in_blocks_of_any_size(block, monkeypatch):
    users, items, chosen, seen = drawn()
    monkeypatch.setattr(ranking, "_BLOCK", block)
    found = rank_items(users, items, bags(chosen), seen=bags(seen), k=[1, 5, ITEMS])
    scores = users @ items.T
    some = [u for u in range(USERS) if len(chosen[u])]
    for k in (1, 5, ITEMS):
        wanted = [of_user(scores[u], chosen[u], seen[u], k) for u in some]
        for name in METRICS:
            mean = np.mean([own[name] for own in wanted])
            assert found[f"{name}@{k}"] == pytest.approx(mean, rel=1e-12), (name, k)
    assert (found["users"], found["users_without_items"]) == (len(some), USERS - len(some))
    assert len(some) < USERS


def test_given_negatives_rank_the_first_column_and_parts_merge():
    scores = np.random.default_rng(1).integers(0, 9, (USERS, 21)).astype(np.float32)
    parts = [RankingMetrics([3, 10]), RankingMetrics([3, 10])]
    for part, rows in zip(parts, (slice(0, 11), slice(11, None)), strict=True):
        part.update(scores[rows])
    parts[0].merge(parts[1])
    found = parts[0].result()
    for k in (3, 10):
        wanted = [of_user(row, [0], [], k) for row in scores]
        for name in METRICS:
            assert found[f"{name}@{k}"] == pytest.approx(np.mean([own[name] for own in wanted]))


def test_chosen_items_without_a_score_count_as_not_found():
    metrics = RankingMetrics(2)
    counts = np.array([4, 1, 2, 0])
    metrics.update(-np.tile(np.arange(3.0), (4, 1)), bags([[0], [1], [], []]), counts=counts)
    found = metrics.result()
    assert (found["users"], found["users_without_items"]) == (3, 1)
    half = 1 / math.log2(3)  # discount of the second rank
    assert found["recall@2"] == pytest.approx((1 / 4 + 1 + 0) / 3)
    assert found["ndcg@2"] == pytest.approx((1 / (1 + half) + half + 0) / 3)
    assert found["map@2"] == pytest.approx((1 / 2 + 1 / 2 + 0) / 3)
    ranked = rank_items(np.eye(4), np.eye(4), bags([[0], [1], [], []]), counts=counts, k=2)
    assert ranked["recall@2"] == found["recall@2"]


def test_a_model_that_scores_all_alike_hits_nothing_before_the_end():
    metrics = RankingMetrics([4, 5])
    metrics.update(np.zeros((3, 5)))
    assert (metrics.result()["hr@4"], metrics.result()["mrr@5"]) == (0.0, pytest.approx(0.2))
    assert RankingMetrics(1).result()["hr@1"] is None


NAN = np.full((2, 3), np.nan)
WRONG = {
    "k above the items": (
        lambda: RankingMetrics(4).update(np.zeros((2, 3))),
        ConfigError,
        "k is 4",
    ),
    "k of 0": (lambda: RankingMetrics(0), ConfigError, "k is 0"),
    "vectors": (lambda: RankingMetrics(1).update(np.zeros(3)), ConfigError, "users, items"),
    "NaN": (lambda: RankingMetrics(1).update(NAN), NumericalError, "user 0"),
    "an item beyond": (
        lambda: RankingMetrics(1).update(np.zeros((2, 3)), bags([[0], [3]])),
        DataError,
        "chosen: list 1 has item 3",
    ),
    "too few lists": (
        lambda: rank_items(np.zeros((2, 3)), np.zeros((5, 3)), bags([[0]]), k=1),
        ConfigError,
        "chosen has 1 lists for 2 users",
    ),
    "offsets of fewer items than there are": (
        lambda: rank_items(np.zeros((2, 3)), np.zeros((5, 3)), Ragged([0, 1], [0, 1, 1]), k=1),
        DataError,
        "chosen: offsets go from 0 to 1; they must go from 0 to the number of ids, 2",
    ),
    "offsets of seen items that begin behind the first": (
        lambda: rank_items(
            np.zeros((2, 3)),
            np.zeros((5, 3)),
            bags([[0], [1]]),
            seen=Ragged([0, 1], [1, 1, 2]),
            k=1,
        ),
        DataError,
        "seen: offsets go from 1 to 2",
    ),
    "counts of fewer than are listed": (
        lambda: RankingMetrics(1).update(
            np.zeros((2, 3)), bags([[0], [1, 2]]), counts=np.array([1, 1])
        ),
        ConfigError,
        "counts: 1 for list 1, but the list has 2 items",
    ),
    "counts of other rows": (
        lambda: rank_items(
            np.zeros((2, 3)), np.zeros((5, 3)), bags([[0], [1]]), counts=np.array([1]), k=1
        ),
        ConfigError,
        "for 2 users",
    ),
    "widths": (
        lambda: rank_items(np.zeros((2, 3)), np.zeros((5, 4)), bags([[0], [1]])),
        ConfigError,
        "one width",
    ),
    "another k": (lambda: RankingMetrics(1).merge(RankingMetrics(2)), ConfigError, "merged"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_ranked_is_refused_in_a_line(name):
    call, error, text = WRONG[name]
    with pytest.raises(error, match=text):
        call()
