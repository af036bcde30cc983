# SPDX-License-Identifier: Apache-2.0
"""Schedules: the passes that turn a Relax module into fast kernels for a target.

`pipeline` lists the passes in order. Graph passes come first (`lower_attention`, `transposes`,
`fold_rounding`, `fold_permutation`, `row_product`), with a hand-written kernel for `softmax`.
`rule` then picks one for each kernel: `matmul`, `elementwise`, `reduction`, `fallback`;
`bf16` and `amx` for bfloat16. `hoist_allocations` and the `elide_*` passes
come last. `product`, `operands`, `register_tile` and `half_products` are parts of the
schedule of a product.
"""

from sparsetrain.compiler.schedule.hoist_allocations import KINDS as KINDS
from sparsetrain.compiler.schedule.hoist_allocations import NEEDS as NEEDS
from sparsetrain.compiler.schedule.pipeline import pipeline as pipeline
