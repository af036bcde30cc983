# SPDX-License-Identifier: Apache-2.0
"""`TrainingState`: parameters, slots and counts, and how a checkpoint fills them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sparsetrain.checkpoint import Saved
from sparsetrain.optim.arguments import from_config
from sparsetrain.optim.param_groups import rule_of
from sparsetrain.optim.update_rule import UpdateRule
from sparsetrain.tables.restoring import missed_of
from sparsetrain.tables.state_dict import BESIDE, COUNT, check_finite, check_kinds


class TrainingState(NamedTuple):
    """Views of parameters and slots by name, and the trainer's counts as plain values."""

    arrays: dict[str, np.ndarray]
    counts: dict[str, Any]


def fill_(target: dict[str, np.ndarray], saved: Saved, updates: int | None) -> None:
    """Fill arrays from a checkpoint; writes `target`.

    An optimizer that counts steps, for example for a schedule, can continue from an optimizer that
    does not, and vice versa. If the target has no optimizer, saved slots are ignored.

    Parameters
    ----------
    target : dict of str to array
    saved : Saved
    updates : int or None
        The optimizer's updates so far, from the trainer's counts; None without an optimizer.
    """
    names = {name for name in saved.kinds if not name.startswith(BESIDE)}
    if updates is None:
        names = {name for name in names if name in target or ":" not in name}
    counted = None if COUNT in names else target.pop(COUNT, None)
    if COUNT not in target:
        names.discard(COUNT)
    check_kinds(target, {name: saved.kinds[name] for name in names})
    saved.fill(target)
    check_finite(target)
    if counted is not None:
        counted[...] = updates


def needs_slots(manifest: Mapping[str, Any]) -> bool:
    """Whether scoring with a saved trainer needs its slots: for averages or lagging rows."""
    averages = manifest["optimizer"]["options"].get("average") is not None
    return averages or bool(missed_of(manifest))


def rule_then(manifest: Mapping[str, Any], name: str) -> UpdateRule:
    """Return the update rule that a table had when it was saved."""
    optimizer = from_config(manifest["optimizer"])
    return rule_of(name, optimizer.rule(), optimizer.groups)
