# SPDX-License-Identifier: Apache-2.0
"""Reads and writes by ids that stay inside their tensors for any id.

TVM checks no id: with an id out of range its kernels for `gather_nd` and its kin read foreign
memory, and those for `scatter_nd` write to it. Here they have their own kernels (`reads`,
`writes`). Ids that are arguments are checked before (`limits`), so these kernels only guard ids
that a model computes.
"""

from sparsetrain.ops.indexing import reads, writes
from sparsetrain.ops.indexing.limits import Limit as Limit
from sparsetrain.ops.indexing.limits import limits as limits
from sparsetrain.ops.indexing.limits import require_inside as require_inside

LEGALIZE = {**reads.LEGALIZE, **writes.LEGALIZE}
