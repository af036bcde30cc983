# SPDX-License-Identifier: Apache-2.0
"""Which path `update="auto"`, the trainer's default, takes for tables like these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsetrain import runtime
from sparsetrain.compare.arms import optimizer_of
from sparsetrain.compare.case import Case
from sparsetrain.optim import State, TableUpdate
from sparsetrain.optim.choice import choose

_STORAGE = "tables"


def auto_paths(cases: Sequence[Case]) -> list[str]:
    """For each of some tables that share a storage, "sparse" or "dense".

    Tables of one storage are updated together, so the answer for one depends on the others. The
    costs that decide are measured once on a machine, and kept.
    """
    first = cases[0]
    small = TableUpdate(optimizer_of(first), runtime.zeros((1, first.width), "float32"), "auto")
    (part,) = small.state.ranges["table"]
    ends = np.cumsum([case.rows for case in cases])
    spans = [(int(end) - case.rows, int(end)) for case, end in zip(cases, ends, strict=True)]
    names = [str(number) for number in range(len(cases))]
    ranges = part._replace(names=tuple(names), first=0, end=spans[-1][1])
    tables = {name: slice(*span) for name, span in zip(names, spans, strict=True)}
    state = State(
        {_STORAGE: {}},
        small.optimizer,
        {_STORAGE: (ranges,)},
        {_STORAGE: tables},
        {_STORAGE: "float32"},
    )
    lookups = sum(case.lookups for case in cases)
    dense = {part.first for part in choose(state, _STORAGE, lookups, first.width, "float32").dense}
    return ["dense" if begin in dense else "sparse" for begin, _ in spans]
