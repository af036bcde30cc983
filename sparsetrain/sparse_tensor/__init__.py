# SPDX-License-Identifier: Apache-2.0
"""Row-sparse tensors: the type, its algebra, coalescing, SciPy exchange.

`row_sparse` (the type) with its operators in `arithmetic`, `algebra` (operators that look at no
numbers, written for traces and run on tensors too), `coalesce` (the rows and their order:
`CoalescePlan`), with the kernels of a CPU in `segment_kernels` and `plan_kernel`.
"""

from sparsetrain.sparse_tensor.coalesce import CoalescePlan as CoalescePlan
from sparsetrain.sparse_tensor.row_sparse import RowSparse as RowSparse
