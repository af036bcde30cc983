# SPDX-License-Identifier: Apache-2.0
"""`TrainingState`: parameters, slots and counts, and their filling from a checkpoint."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sparsetrain.checkpoint import Saved
from sparsetrain.tables.state_dict import COUNT, ENCODER, check_finite, check_kinds


class TrainingState(NamedTuple):
    """Parameters and slots by name, as views, and the counts of steps, as plain values."""

    arrays: dict[str, np.ndarray]
    counts: dict[str, Any]


def fill_(target: dict[str, np.ndarray], saved: Saved, updates: int | None) -> None:
    """Fill arrays from a checkpoint; writes `target`.

    An optimizer that counts steps, such as one with a schedule, takes over from one that does not,
    and the reverse. Of what has no optimizer the slots are left where they are.

    Parameters
    ----------
    target : dict of str to array
    saved : Saved
    updates : int or None
        Those of the optimizer so far, by the counts of the trainer; None without an optimizer.
    """
    names = {name for name in saved.kinds if not name.startswith(ENCODER)}
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
