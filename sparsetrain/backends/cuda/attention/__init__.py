# SPDX-License-Identifier: Apache-2.0
"""Attention within ragged rows on a device: with a softmax, and with SiLU in its place."""

from sparsetrain.backends.cuda.attention import silu, softmax

KERNELS = {
    "ragged_attention": softmax.attention_kernel,
    "ragged_attention_cotangent": softmax.attention_cotangent_kernel,
    "ragged_silu_attention": silu.silu_attention_kernel,
    "ragged_silu_attention_cotangent": silu.silu_attention_cotangent_kernel,
    # None of chosen queries: attention computes all tokens, see `compiler.dead_rows.row_rules`.
    "ragged_attention_at": None,
    "ragged_silu_attention_at": None,
}
