# SPDX-License-Identifier: Apache-2.0
"""Table of CUDA kernels, keyed by the names of the CPU kernels that they replace."""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm.script.ir_builder import tirx as T

from sparsetrain.backends.cuda import attention, binned, indexing
from sparsetrain.backends.cuda.interaction import backward, forward
from sparsetrain.backends.cuda.schedule.long_product import long_product
from sparsetrain.backends.cuda.sparse import parts
from sparsetrain.backends.cuda.sparse import row_kernels as rows
from sparsetrain.backends.cuda.update import arrays, launch
from sparsetrain.backends.cuda.update import update_kernels as updates
from sparsetrain.embedding import lookup_kernels as embedding
from sparsetrain.kernels.loops import Loops
from sparsetrain.ops import graph, softmax_loss
from sparsetrain.ops.ragged import row_kernels as ragged
from sparsetrain.optim.update.check_kernel import nonfinite_kernel

# Each thread handles one 16-byte vector, and the vectors of all rows are numbered consecutively: a
# warp covers eight rows of width 16, or one row of width 128.
LOOPS = Loops(parts.each_of, parts.each_vector, parts.each_row, partial(T.unroll, 0))
lookup_kernel = partial(embedding.plain_lookup_kernel, loops=LOOPS)

KERNELS: dict[str, Any] = {
    "lookup": lookup_kernel,
    "embedding_bag": partial(embedding.bag_kernel, loops=LOOPS),
    "bag_source": partial(embedding.bag_source_kernel, loops=LOOPS),
    "bag_mean_cotangent": partial(embedding.bag_mean_cotangent_kernel, loops=LOOPS),
    "weighted_values": partial(embedding.weighted_values_kernel, loops=LOOPS),
    "weight_cotangent": partial(embedding.weight_cotangent_kernel, loops=LOOPS),
    "interaction": forward.forward_kernel,
    "interaction_backward": backward.backward_kernel,
    "binned": binned.forward_kernel,
    "binned_backward": binned.backward_kernel,
    "write": indexing.write_kernel,
    "scatter_add_rows": rows.scatter_add_kernel,
    **{name: partial(make, loops=LOOPS) for name, make in ragged.KERNELS.items()},
    "csr_product": partial(graph.csr_product_kernel, loops=LOOPS),
    **attention.KERNELS,
    "linear_cross_entropy": partial(softmax_loss.softmax_loss_kernel, loops=LOOPS),
    "scale_rows": partial(softmax_loss.scale_rows_kernel, loops=LOOPS),
    "softmax": None,
    "long product": long_product,
    "gradients times a number": arrays.scale_kernel,
    "sum of squares": arrays.squares_kernel,
    "check for NaN and infinity": partial(nonfinite_kernel, search=arrays.search_all),
    "a number for many rows": launch.fill_,
    **updates.KERNELS,
}
