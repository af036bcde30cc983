# SPDX-License-Identifier: Apache-2.0
"""Which path `update="auto"`, the trainer's default, takes for tables like these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.compare.arms import optimizer_of
from sparsetrain.compare.case import Case
from sparsetrain.optim import State, TableUpdate
from sparsetrain.optim.paths.choice import choose

_STORAGE = "tables"


class Auto(NamedTuple):
    """The path of each table, "sparse" or "dense", and whether it is known which is cheaper.

    It is not while the machine is busy; then all are sparse.
    """

    paths: list[str]
    known: bool

    @property
    def together(self) -> str:
        """All paths in a word, or how many are dense."""
        if len(set(self.paths)) == 1:
            return self.paths[0]
        return f"{self.paths.count('dense')} of {len(self.paths)} dense"


def auto_paths(cases: Sequence[Case]) -> Auto:
    """What the trainer takes for some tables that share a storage.

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
    choice = choose(state, _STORAGE, lookups, first.width, "float32")
    dense = {part.first for part in choice.dense}
    return Auto(["dense" if begin in dense else "sparse" for begin, _ in spans], choice.known)
