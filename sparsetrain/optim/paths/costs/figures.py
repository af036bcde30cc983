# SPDX-License-Identifier: Apache-2.0
"""The figures that a choice asks for: measured once on this machine, then remembered.

Straight lines (`lines`) tell most choices apart, but are good to some 30 %, on a busy machine to
less. Unless they speak clearly for the sparse path, both are tried on tables of the very sizes, see
`verdict_of`. Figures are kept by machine, threads, formula, width and the sources of this package
(`remembered`). They decide speed, never bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.optim.paths.costs.calibration import IDS, MANY, measure
from sparsetrain.optim.paths.costs.lines import Costs
from sparsetrain.optim.paths.costs.remembered import Kept, is_known, remembered
from sparsetrain.optim.paths.costs.trial import Kind, Trial, Verdict, contest, kernels_of
from sparsetrain.optim.paths.costs.waiting import share_waited
from sparsetrain.optim.rule import Rule

MOST_BITS = 31  # of an int32 id
BATCHES = 8
MOST_FAR_BYTES = 2**25  # of rows that stay sparse: beyond the caches


def costs_of(rule: Rule, width: int, dtype: str, rows: int, lookups: int) -> Costs | None:
    """Costs of a formula, at a width, in a storage of some rows that is looked up at some ids.

    As measured before, or now; None while the machine is busy.
    """
    kind, many = _kind(rule, width, dtype, rows), lookups >= MANY
    now = partial(measure, kind, many=many)
    found = remembered(Costs, *_names(kind, many), now, least=0.0)
    return None if found is None else found.figures


def kernels_to_measure(
    rule: Rule, width: int, dtype: str, rows: int, lookups: int
) -> list[partial[Any]]:
    """What has those kernels ready, one by one, that `costs_of` would run; none if it is known."""
    kind, many = _kind(rule, width, dtype, rows), lookups >= MANY
    known = is_known(Costs, *_names(kind, many), least=0.0)
    return [] if known else kernels_of(kind, IDS[many])


def _kind(rule: Rule, width: int, dtype: str, rows: int) -> Kind:
    """Ids are sorted by the bits of the storage's rows."""
    return Kind(rule, width, dtype, 2 ** min(rows.bit_length(), MOST_BITS) - 1)


def verdict_of(
    rule: Rule, width: int, dtype: str, rows: int, near: Sequence[int], each: int, far: int
) -> Kept | None:
    """What the dense path saves where `near` tables take it, as tried before, or now.

    A `Verdict`, and how many runs found the like; None while the machine is busy.

    Parameters
    ----------
    rule, width, dtype
        What is computed.
    rows : int
        Of the storage.
    near : sequence of int
        Rows of the tables that would be updated densely.
    each : int
        Ids that each of them is looked up at, in a step.
    far : int
        Ids of all other tables together.
    """
    kind = _kind(rule, width, dtype, rows)
    most = max(MOST_FAR_BYTES // (width * np.dtype(dtype).itemsize), 1)
    others = min(rows - sum(near), most) if far else 0
    asked = tuple(near), rounded(each), rounded(far), others
    now = partial(_try, kind, *asked)
    return remembered(Verdict, *_names(kind, asked), now, doubtful=lambda tried: tried.low > 0)


def _try(kind: Kind, near: tuple[int, ...], each: int, far: int, others: int) -> Verdict:
    rng = np.random.default_rng(0)
    firsts = np.cumsum([0, *near])
    tables = [(first, rows, each) for first, rows in zip(firsts, near, strict=False)]
    tables += [(firsts[-1], others, far)] if far else []
    batches = [_ids(rng, tables) for _ in range(BATCHES)]
    trial = Trial(kind, int(firsts[-1]), others, batches)
    for work in (trial.sparse_, trial.dense_):
        work()  # kernels are compiled
    verdict, waited = share_waited(partial(contest, trial.sparse_, trial.dense_))
    return verdict._replace(waited=waited)


def _ids(rng: np.random.Generator, tables: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Ids of a step: few are frequent, as categories are; the k-th with a weight of 1 / k.

    Frequent rows do not lie side by side.
    """
    drawn = []
    for first, rows, count in tables:
        ranks = ((rows + 1.0) ** rng.random(count)).astype(np.int64).clip(1, rows) - 1
        drawn.append(first + ranks * _step(rows) % rows)
    return rng.permutation(np.concatenate(drawn)).astype(np.int32)


def _step(rows: int) -> int:
    """What to multiply ranks by, so that all rows are reached and neighbours part."""
    step = max(int(0.618 * rows), 1)
    while np.gcd(step, rows) != 1:
        step += 1
    return step


def rounded(count: int) -> int:
    """The three highest bits: batches of bags have new counts in every step."""
    shift = max(count.bit_length() - 3, 0)
    return count >> shift << shift


def _names(kind: Kind, asked: object) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Of figures, in this process and in the cache; a formula counts with the code of its step."""
    recipe, rest = kind.rule.recipe, (*kind[1:], asked, runtime.num_threads())
    formula = recipe.formula
    slots = [tuple(slot) for slot in formula.slots]
    code = getattr(getattr(formula.step, "__code__", None), "co_code", b"")
    return (recipe, *rest), (formula.name, slots, recipe.scalars, *rest, code)
