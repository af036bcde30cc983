# SPDX-License-Identifier: Apache-2.0
"""Reads and writes by ids that stay inside their tensors, whatever the ids are.

TVM checks no id: its kernels for `gather_nd`, `scatter_elements` and their kin read or write other
memory if one lies outside. Here each has a kernel of its own, on a CPU and on CUDA alike, and one
rule (`places`): negative ids count from the end, as in NumPy; what is read outside is NaN, of whole
numbers the lowest; what would be written outside is left out. Ids that are arguments are checked
before (`limits`), so that is what ids do which a model computes.

- `places`: what an id stands for
- `reads`: an element of the result per id, from wherever it lies
- `destinations`: writes of every operator as rows with one place each
- `put_rows`: rows written by such places, one writer each, in order (`cpu_kernel`, `cuda_kernel`;
  arguments of both: `put_rows_arguments`)
- `writes`: the operators that write
"""

from sparsetrain.ops.indexing import reads, writes
from sparsetrain.ops.indexing.limits import Limit as Limit
from sparsetrain.ops.indexing.limits import limits as limits
from sparsetrain.ops.indexing.limits import require_inside as require_inside
from sparsetrain.ops.indexing.put_rows import add_rows as add_rows
from sparsetrain.ops.indexing.put_rows import put_rows as put_rows

# Operator -> how it is lowered, in place of TVM's way.
LEGALIZE = {**reads.LEGALIZE, **writes.LEGALIZE}
