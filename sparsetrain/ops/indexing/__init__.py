# SPDX-License-Identifier: Apache-2.0
"""Reads and writes by ids that stay inside their tensors, whatever the ids are.

TVM checks no id: its kernels for `gather_nd` and its kin read other memory if one lies outside, and
those of `scatter_nd` write there. Here they have kernels of their own (`reads`, `writes`). Ids that
are arguments are checked before (`limits`), so that is what ids do which a model computes.
"""

from sparsetrain.ops.indexing import reads, writes
from sparsetrain.ops.indexing.limits import Limit as Limit
from sparsetrain.ops.indexing.limits import limits as limits
from sparsetrain.ops.indexing.limits import require_inside as require_inside

LEGALIZE = {**reads.LEGALIZE, **writes.LEGALIZE}
