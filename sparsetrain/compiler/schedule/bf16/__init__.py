# SPDX-License-Identifier: Apache-2.0
"""Products of bfloat16 on a CPU that multiplies pairs of them (AVX512_BF16)."""

from sparsetrain.compiler.schedule.bf16.matmul import HalfMatmul as HalfMatmul
