# SPDX-License-Identifier: Apache-2.0
"""Schedules: the passes that turn a Relax module into fast kernels for a target.

`pipeline` lists the passes in order. Graph passes come first (`lower_attention`, `transposes`,
`fold_rounding`, `fold_permutation`, `row_product`, and `softmax` with a hand-written kernel). Then
`rule` picks a schedule for each kernel: `matmul`, `elementwise`, `reduction` or `fallback`, or
`bf16` or `amx` for bfloat16 products. `hoist_allocations` and `elide_argument_checks` come last.
`product`, `operands`, `register_tile` and `half_products` are helpers for scheduling a product.
"""

from sparsetrain.compiler.schedule.hoist_allocations import KINDS as KINDS
from sparsetrain.compiler.schedule.hoist_allocations import NEEDS as NEEDS
from sparsetrain.compiler.schedule.pipeline import pipeline as pipeline
