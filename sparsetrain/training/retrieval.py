# SPDX-License-Identifier: Apache-2.0
"""Retrieval with a model of queries and items: ranking metrics and the best items of each row.

Functions without a dataset are methods of a `Predictor`. An item's score is the dot product of its
vector and the query's. The scores of all items for a batch of rows are held in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.data import Batch, Dataset, Ragged
from sparsetrain.data.columns.category import MISSING
from sparsetrain.errors import ConfigError, NumericalError
from sparsetrain.metrics import RankingMetrics
from sparsetrain.models.draws import Draws
from sparsetrain.models.features import column_of
from sparsetrain.models.functions import arguments_of
from sparsetrain.system.argument_checks import require_int
from sparsetrain.training.ranking_floor import Floor

SCORES = 1 << 24  # scores held in memory at once
NO_ITEM = -1  # stands for an id if fewer than k items are left


def item_vectors(predictor: Any) -> np.ndarray:
    """Return (V, D) float32 vectors of all items, for example for an index of your own."""
    _require_retrieval(predictor)
    found: np.ndarray = predictor._vectors("items")
    return found


def query_vectors(predictor: Any, data: Any, *, batch_size: int = 4096) -> np.ndarray:
    """Return (rows, D) float32 vectors; their dot products with item vectors are scores."""
    dataset = predictor._dataset(data, require_label=False)
    found = [_queries(predictor, batch) for batch in dataset.batches(batch_size)]
    return np.concatenate(found) if found else np.empty((0, item_vectors(predictor).shape[1]))


def _queries(predictor: Any, batch: Batch) -> np.ndarray:
    """Return (B, D) float32 vectors of the rows of a batch."""
    found: np.ndarray = predictor._vectors("query", batch)
    return found


class _ByVectors:
    """Scores as dot products of vectors; item vectors are computed once."""

    def __init__(self, predictor: Any) -> None:
        self._predictor, self._items = predictor, item_vectors(predictor)
        self.count = len(self._items)  # number of items

    def of_all(self, batch: Batch) -> np.ndarray:
        """Return the scores of all items, (B, V) float32."""
        return _queries(self._predictor, batch) @ self._items.T

    def of(self, batch: Batch, ids: np.ndarray) -> np.ndarray:
        """Return the score of one item per row, (B,)."""
        return (_queries(self._predictor, batch) * self._items[ids]).sum(axis=1)


class _ByModel:
    """Scores from the model's own method, see `Model.score_items`."""

    def __init__(self, predictor: Any) -> None:
        self._predictor, self._model = predictor, predictor.model
        self._params = {n: runtime.as_numpy(p) for n, p in predictor._weights({}).items()}
        self.count = self._model.rows_of(self._model.features[self._model.target])

    def of_all(self, batch: Batch) -> np.ndarray:
        """Return the scores of all items, (B, V) float32."""
        target = self._model.target
        names = [name for name in self._model.features if name != target]
        features = {name: self._model.read(name, batch) for name in names}
        scores: np.ndarray = self._model.score_items(features, self._params)
        return scores

    def of(self, batch: Batch, ids: np.ndarray) -> np.ndarray:
        """Return the score of one item per row, (B,)."""
        return self.of_all(batch)[np.arange(len(ids)), ids]


def _scorer(predictor: Any) -> _ByVectors | _ByModel:
    made = _ByModel if predictor.model.defines("score_items") else _ByVectors
    return made(predictor)


def wanted_column(model: Any) -> tuple[str, ...]:
    """Return the column of wanted items; data need it only if wanted items are scored.

    The result is empty if the model has no `target`, or if its queries read that column.
    """
    target = model.target
    reads = arguments_of(model, "query") if "query" in model.functions else ()
    return () if target in (None, *reads) else (column_of(target, model.features[target]),)


def predict(predictor: Any, dataset: Dataset, batch_size: int) -> np.ndarray:
    """Return scores (rows,) of the wanted items, or (rows, V) of all if the data name none."""
    scorer, model = _scorer(predictor), predictor.model
    if model.target is not None and dataset.absent.isdisjoint(wanted_column(model)):
        found = [_scores_of_target(predictor, each, scorer) for each in dataset.batches(batch_size)]
        return np.concatenate(found)
    no_items = _no_items(model, scorer.count)
    rows = dataset.batches(_rows_at_once(scorer.count))
    return np.concatenate([_scores(scorer, batch, no_items) for batch in rows])


def _scores_of_target(predictor: Any, batch: Batch, scorer: _ByVectors | _ByModel) -> np.ndarray:
    """Return (B,) scores of the wanted item of each row."""
    model = predictor.model
    wanted = model.read(model.target, batch)
    if not isinstance(wanted, np.ndarray):
        raise ConfigError(
            f"{type(model).__name__} has no target with one item per row to score: use "
            "recommend(data) for the best items"
        )
    scores = scorer.of(batch, wanted)
    _require_finite(scores)
    return scores


def recommend(
    predictor: Any, data: Any, k: int = 10, *, include_seen: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and scores of the k best items for each row, (rows, k) each, best first.

    Parameters
    ----------
    data : any source that `fit` accepts
        The column of wanted items is not read, and may be missing.
    k : int
    include_seen : bool
        Whether to recommend items that a row already has in the model's `seen` feature.

    Returns
    -------
    tuple of (rows, k) int64 and (rows, k) float32
        The ids and the scores; ``encoder.values(column)[id]`` is the value of an id. If a row has
        fewer than k items left, the remaining ids are -1 and their scores -inf.

    Raises
    ------
    ConfigError
        If the model has no query and item vectors, or fewer than k items.
    """
    dataset = predictor._dataset(data, require_label=False)
    scorer = _scorer(predictor)
    no_items = _no_items(predictor.model, scorer.count)
    if require_int("k", k) > (count := scorer.count - int(no_items.sum())):
        raise ConfigError(f"k is {k:,}, but there are {count:,} items")
    found = []
    for batch in dataset.batches(_rows_at_once(scorer.count)):
        scores = _scores(scorer, batch, no_items)
        seen = None if include_seen else _listed(predictor.model, predictor.model.seen, batch)
        if seen is not None:
            scores[seen.rows(), seen.ids] = -np.inf
        best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        kept = np.take_along_axis(scores, best, axis=1)
        order = np.lexsort((best, -kept), axis=1)  # among equal scores, smaller ids come first
        best, kept = (np.take_along_axis(array, order, axis=1) for array in (best, kept))
        found.append([np.where(np.isneginf(kept), NO_ITEM, best), kept])
    none = [np.empty((0, k), np.int64), np.empty((0, k), np.float32)]
    ids, scores = map(np.concatenate, zip(none, *found, strict=True))
    return ids, scores


def evaluate(
    predictor: Any,
    dataset: Dataset,
    k: int | Sequence[int] = 10,
    negatives: int | np.ndarray | None = None,
    negative_weights: np.ndarray | None = None,
    stop: Callable[[], bool] | None = None,
    floor: bool = False,
) -> dict[str, Any] | None:
    """Return ranking metrics of the wanted items; with `floor`, also the metrics of Pop.

    The result is None if `stop` returned True between two batches.
    """
    model = predictor.model
    if model.target is None:
        raise ConfigError(
            f"{type(model).__name__} has no target: set it to the name of the feature of wanted "
            "items"
        )
    scorer, metrics = _scorer(predictor), RankingMetrics(k)
    no_items = _no_items(model, scorer.count)
    pop = Floor(k, no_items)
    negatives, weights = _checked(negatives, negative_weights, scorer.count), negative_weights
    first = 0
    if model._columns is not None:
        dataset = dataset.with_distinct(model._columns[model.target])
    for number, batch in enumerate(dataset.batches(_rows_at_once(scorer.count))):
        if number and stop is not None and stop():
            return None
        scores = _scores(scorer, batch, no_items)
        listed = _listed(model, model.target, batch)
        assert listed is not None
        wanted, counts = _wanted(listed, no_items, dataset.is_raw)
        seen = history = _listed(model, model.seen, batch)
        both: np.ndarray | None = None
        if negatives is not None:
            if (np.diff(listed.offsets) != 1).any():
                raise ConfigError("negatives need exactly one wanted item in each row")
            if isinstance(negatives, int):
                others = _drawn(scores, listed, seen, negatives, weights, number)
            elif len(others := negatives[first : first + len(batch)]) < len(batch):
                raise ConfigError(f"negatives has {len(negatives):,} rows, fewer than the data")
            first += len(batch)
            both = np.concatenate([listed.ids[:, None], others], axis=1)
            scores, seen = np.take_along_axis(scores, both, axis=1), None
            wanted = Ragged(np.zeros_like(wanted.ids), wanted.offsets)  # the first column
        metrics.update(scores, wanted, seen, counts)
        if floor and history is not None:
            pop.add(wanted, counts, history, both)
    if isinstance(negatives, np.ndarray) and first < len(negatives):
        raise ConfigError(f"negatives has {len(negatives):,} rows, but the data have {first:,}")
    return metrics.result() | pop.result()


def _wanted(listed: Ragged, no_items: np.ndarray, is_raw: bool) -> tuple[Ragged, np.ndarray]:
    """Return each row's wanted items, and its number of wanted values, including rare values.

    Raw data were read with each value listed once, so each value that is not missing counts. In
    encoded data, values that share an id cannot be told apart: an item counts once, and every rare
    value counts.
    """
    ids, rows, lists = listed.ids, listed.rows(), len(listed.offsets) - 1
    is_item, first = ~no_items[ids], np.full(len(ids), is_raw)
    first[np.unique(rows * len(no_items) + ids, return_index=True)[1]] = True
    counted = np.where(is_item, first, ids != MISSING)
    ends = np.cumsum(np.bincount(rows[is_item], minlength=lists))
    return Ragged(ids[is_item], np.r_[0, ends]), np.bincount(rows[counted], minlength=lists)


def _checked(negatives: Any, weights: Any, items: int) -> int | np.ndarray | None:
    """Return checked negatives: a number, or ids of items."""
    if weights is not None and not (
        isinstance(weights, np.ndarray) and weights.shape == (items,) and (weights >= 0).all()
    ):
        raise ConfigError(f"negative_weights: give a weight of 0 or more for each of {items:,} ids")
    drawn = isinstance(negatives, (int, np.integer))
    if weights is not None and not drawn:
        raise ConfigError("negative_weights need a number of negatives, such as negatives=100")
    if negatives is None or drawn:
        return None if negatives is None else require_int("negatives", negatives)
    ids = np.asarray(negatives)
    if ids.ndim != 2 or ids.dtype.kind not in "iu" or ((ids < 0) | (ids >= items)).any():
        raise ConfigError(f"negatives: give a number, or ids (rows, n) from 0 to {items - 1:,}")
    return ids.astype(np.int64)


def _drawn(
    scores: np.ndarray,
    wanted: Ragged,
    seen: Ragged | None,
    count: int,
    weights: np.ndarray | None,
    number: int,
) -> np.ndarray:
    """Draw ids (B, count) of items that a row neither wants nor has seen."""
    rows, items = scores.shape
    taken = np.isneginf(scores)  # ids that are not items
    if weights is not None:
        taken |= weights == 0
    taken[np.arange(rows), wanted.ids] = True
    if seen is not None:
        taken[seen.rows(), seen.ids] = True
    if (items - taken.sum(axis=1)).min() < count:
        raise ConfigError(f"negatives is {count:,}, but a row has fewer unseen items")
    draws = Draws(0, number)
    few = None if weights is not None else _few(draws, taken, count)
    if few is not None:
        return few
    # Items with the largest random numbers are a sample without replacement; with log(u) / weight
    # the items are drawn in proportion to their weights (Efraimidis and Spirakis 2006).
    chance = draws.uniform("negatives", scores)
    if weights is not None:
        with np.errstate(divide="ignore"):
            chance = np.log(chance) / weights
    chance[taken] = -np.inf
    return np.argpartition(-chance, count - 1, axis=1)[:, :count]


def _few(draws: Draws, taken: np.ndarray, count: int) -> np.ndarray | None:
    """Draw a few of many items without replacement, excluding taken ones; None if too few remain.

    This takes a fortieth of the time that one random number for each item would take.
    """
    rows, items = taken.shape
    ids = draws.integers("few", items, like=np.empty((rows, 2 * count), bool))
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(ids, order, axis=1)
    out = np.take_along_axis(taken, ids, axis=1)
    again = np.take_along_axis(out, order[:, 1:], axis=1) | (ordered[:, 1:] == ordered[:, :-1])
    np.put_along_axis(out, order[:, 1:], again, axis=1)
    if (out.sum(axis=1) > count).any():
        return None
    kept = np.argsort(out, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(ids, kept, axis=1)


def _scores(scorer: _ByVectors | _ByModel, batch: Batch, no_items: np.ndarray) -> np.ndarray:
    """Return (B, V) scores, -inf for rows of the table that are not items."""
    scores = scorer.of_all(batch)
    _require_finite(scores)
    scores[:, no_items] = -np.inf
    return scores


def _no_items(model: Any, count: int) -> np.ndarray:
    """Return (count,) bool: the rows of the item table that are not items."""
    rows = np.zeros(count, bool)
    if model._encoder is not None and (model.target or model.seen) is not None:
        rows[:] = True
        rows[model.item_range()] = False
    return rows


def _listed(model: Any, name: str | None, batch: Batch) -> Ragged | None:
    """Return the ids of a feature, as a list for each row."""
    if name is None:
        return None
    found: Ragged = model.read(name, batch, whole=True)
    return found


def _rows_at_once(items: int) -> int:
    return max(1, SCORES // items)


def _require_finite(scores: np.ndarray) -> None:
    if not np.isfinite(scores).all():
        raise NumericalError("the score of an item is not finite: weights are NaN or too large")


def _require_retrieval(predictor: Any) -> None:
    if "query" not in predictor.model.functions or "items" not in predictor.model.functions:
        raise ConfigError(
            f"{type(predictor.model).__name__} has no query(...) and items(), which retrieval needs"
        )
