# SPDX-License-Identifier: Apache-2.0
"""bfloat16 products on a CPU with instructions for dot products of pairs (AVX512_BF16)."""

from sparsetrain.compiler.schedule.bf16.matmul import HalfMatmul as HalfMatmul
