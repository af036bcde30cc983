# SPDX-License-Identifier: Apache-2.0
"""Attention within ragged rows on a device, with a softmax or with SiLU."""

from sparsetrain.backends.cuda.attention import silu, softmax

KERNELS = {
    "ragged_attention": softmax.attention_kernel,
    "ragged_attention_cotangent": softmax.attention_cotangent_kernel,
    "ragged_silu_attention": silu.silu_attention_kernel,
    "ragged_silu_attention_cotangent": silu.silu_attention_cotangent_kernel,
    # There is no kernel for selected queries: on a device, attention computes all tokens (see
    # `compiler.dead_rows.row_rules`).
    "ragged_attention_at": None,
    "ragged_silu_attention_at": None,
}
