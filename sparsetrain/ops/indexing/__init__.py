# SPDX-License-Identifier: Apache-2.0
"""Reads and writes by ids that stay inside their tensors for any id.

TVM checks no ids: given an id out of range, its kernels for `gather_nd` and similar operators read
memory outside the tensor, and its kernels for `scatter_nd` write to it. This package replaces these
kernels (`reads`, `writes`). Ids that are arguments of a program are checked before it runs
(`limits`), so the kernels only guard ids that a model computes.
"""

from sparsetrain.ops.indexing import reads, writes
from sparsetrain.ops.indexing.limits import Limit as Limit
from sparsetrain.ops.indexing.limits import limits as limits
from sparsetrain.ops.indexing.limits import require_inside as require_inside

LEGALIZE = {**reads.LEGALIZE, **writes.LEGALIZE}
