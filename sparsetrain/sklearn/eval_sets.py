# SPDX-License-Identifier: Apache-2.0
"""Rows of `eval_set`, which are scored after each epoch; its forms and names follow LightGBM.

The first set that is not the training data itself is the validation set; each further set costs an
evaluation after each epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsetrain.errors import ConfigError

Pair = tuple[Any, Any]  # X and y


def eval_sets(eval_set: Any, names: Sequence[str] | None, X: Any, y: Any) -> dict[str, Pair]:
    """Return pairs by name: "training" for X and y themselves, else "valid_0" and so on.

    Raises
    ------
    ConfigError
        If `eval_set` is not made of pairs, or `names` does not have a distinct name for each pair.
    """
    pairs = [] if eval_set is None else _pairs(eval_set)
    own = [f"valid_{n}" if not _is(pair, X, y) else "training" for n, pair in enumerate(pairs)]
    own = own if names is None else [*map(str, names)]
    if len({*own}) != len(pairs):
        raise ConfigError(f"eval_names {own} must be {len(pairs)} different names, one a pair")
    return dict(zip(own, pairs, strict=True))


def validated(sets: dict[str, Pair], X: Any, y: Any) -> str | None:
    """Return the name of the set to validate on: the first that is not X and y themselves."""
    held_out = (name for name, pair in sets.items() if not _is(pair, X, y))
    return next(held_out, next(iter(sets), None))


def _is(pair: Pair, X: Any, y: Any) -> bool:
    return pair[0] is X and pair[1] is y


def _pairs(eval_set: Any) -> list[Pair]:
    if isinstance(eval_set, (list, tuple)) and eval_set:
        if all(isinstance(each, tuple) and len(each) == 2 for each in eval_set):
            return [*eval_set]
        if len(eval_set) == 1 and isinstance(eval_set[0], list) and len(eval_set[0]) == 2:
            return [(eval_set[0][0], eval_set[0][1])]
        if len(eval_set) == 2:
            return [(eval_set[0], eval_set[1])]
    raise ConfigError("eval_set must be pairs of rows and labels, [(X, y)] or (X, y)")
