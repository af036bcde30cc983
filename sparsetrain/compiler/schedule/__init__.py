# SPDX-License-Identifier: Apache-2.0
"""How a Relax module becomes fast on a target.

`pipeline` lists the passes in order. First those of the graph (`lower_attention`,
`cancel_transpose`, `fold_rounding`, `fold_transpose`, `fold_permutation`, `row_product`), with a
kernel of its own for `softmax`; then a rule for each kernel (`apply_rules` asks them): `matmul`,
`elementwise`, `reduction`, `fallback`, in bfloat16 `bf16` and `amx`, on a GPU all of `cuda`; then
who calls them, in memory that is kept (`kept_memory`). `product`, `operands`, `register_tile`,
`half_bits`, `half_match`, `epilogue`, `last_panel` and the files on prefetching are parts of a
product's schedule.
"""

from sparsetrain.compiler.schedule.kept_memory import KINDS as KINDS
from sparsetrain.compiler.schedule.kept_memory import NEEDS as NEEDS
from sparsetrain.compiler.schedule.pipeline import pipeline as pipeline
