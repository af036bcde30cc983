# SPDX-License-Identifier: Apache-2.0
"""Reads by ids that stay inside their tensors, whatever the ids are.

TVM checks no id: its kernels for `gather_nd` and its kin read other memory if one lies outside.
Here they have a kernel of their own (`reads`). Ids that are arguments are checked before
(`limits`), so that is what ids do which a model computes.
"""

from sparsetrain.ops.indexing.limits import Limit as Limit
from sparsetrain.ops.indexing.limits import limits as limits
from sparsetrain.ops.indexing.limits import require_inside as require_inside
from sparsetrain.ops.indexing.reads import LEGALIZE as LEGALIZE
