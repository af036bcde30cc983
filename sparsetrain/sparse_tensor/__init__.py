# SPDX-License-Identifier: Apache-2.0
"""Row-sparse tensors: the type, its algebra, coalescing, SciPy exchange."""

from sparsetrain.sparse_tensor.coalesce import CoalescePlan as CoalescePlan
from sparsetrain.sparse_tensor.row_sparse import RowSparse as RowSparse
