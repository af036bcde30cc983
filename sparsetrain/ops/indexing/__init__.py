# SPDX-License-Identifier: Apache-2.0
"""Reads and writes by ids that never leave their tensors, even for invalid ids.

TVM checks no ids: with an id out of range, its kernels for `gather_nd` and similar operators read
out of bounds, and its kernels for `scatter_nd` write out of bounds. The kernels in `reads` and
`writes` replace them. Ids that are arguments are checked before a call (`limits`), so these kernels
only guard ids that a model computes.
"""

from sparsetrain.ops.indexing import reads, writes
from sparsetrain.ops.indexing.limits import Limit as Limit
from sparsetrain.ops.indexing.limits import limits as limits
from sparsetrain.ops.indexing.limits import require_inside as require_inside

LEGALIZE = {**reads.LEGALIZE, **writes.LEGALIZE}
