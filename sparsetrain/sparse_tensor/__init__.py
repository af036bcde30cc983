# SPDX-License-Identifier: Apache-2.0
"""Row-sparse tensors: the type, its algebra, coalescing, SciPy exchange.

`row_sparse` (the type) with its operators in `arithmetic`, `algebra` (operators independent of the
values, for traces and tensors), `coalesce` (the rows and their order: `CoalescePlan`), with the
kernels of a CPU in `segment_kernels` and `plan_kernel`.
"""

from sparsetrain.sparse_tensor.coalesce import CoalescePlan as CoalescePlan
from sparsetrain.sparse_tensor.row_sparse import RowSparse as RowSparse
