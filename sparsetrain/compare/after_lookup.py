# SPDX-License-Identifier: Apache-2.0
"""An update of rows that were looked up a moment ago, as those of a training step were.

Rows of a large table are in no cache, and neither is where the system keeps them. Who asks first
waits: in training the lookup does, in a measurement of updates alone the update. So both are timed
here, one after the other, with nothing in between: the other limit. In a model the layers between
them put some of the rows out of the near caches again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.compare.arms import Halves
from sparsetrain.compare.batch import Batch
from sparsetrain.embedding.lookup_kernel import lookup_kernel
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target


class AfterLookup(NamedTuple):
    """Median seconds of the lookup of a step's ids, and of the update that follows."""

    lookup: float
    update: float


def after_lookup(step: Halves, batches: Iterable[Batch], warm: int) -> AfterLookup:
    """Take a step on each batch, its rows looked up first; the first `warm` do not count."""
    table = step.update.weight
    lookup = _lookup(int(table.shape[1]))
    seconds = []
    for batch in batches:
        looked_up = runtime.empty((int(batch.ids.shape[0]), int(table.shape[1])), "float32")
        begin = time.perf_counter()
        lookup(table, batch.ids, looked_up)
        seconds.append((time.perf_counter() - begin, step(batch).whole))
    return AfterLookup(*np.median(np.array(seconds[warm:]), axis=0).tolist())


@cache
def _lookup(width: int) -> Any:
    kernel = lookup_kernel(width, "float32", "int32")
    return compile_kernel(kernel, host_target(), "lookup of rows")
