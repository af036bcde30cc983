# SPDX-License-Identifier: Apache-2.0
"""Row-sparse tensors: the type, its algebra, coalescing, SciPy exchange.

`row_sparse` has the type and `arithmetic` its operators. `algebra` has operators that do not depend
on values, written for traces and also run on tensors. `coalesce` has `CoalescePlan`, the rows and
their order. The CPU's kernels are in `segment_kernels` and `plan_kernel`.
"""

from sparsetrain.sparse_tensor.coalesce import CoalescePlan as CoalescePlan
from sparsetrain.sparse_tensor.row_sparse import RowSparse as RowSparse
