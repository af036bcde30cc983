# SPDX-License-Identifier: Apache-2.0
"""Row-sparse tensors: the type, its algebra, coalescing, SciPy exchange.

Start with `row_sparse` (the type; its operators are in `arithmetic`), `algebra` (operators on both
traced and computed tensors) and `coalesce` (`CoalescePlan`: the unique rows and the order of their
entries). The CPU kernels are in `segment_kernels` and `plan_kernel`.
"""

from sparsetrain.sparse_tensor.coalesce import CoalescePlan as CoalescePlan
from sparsetrain.sparse_tensor.row_sparse import RowSparse as RowSparse
