# SPDX-License-Identifier: Apache-2.0
"""Products of bfloat16 on a CPU with tile registers (AMX)."""

from sparsetrain.compiler.schedule.amx.matmul import TileMatmul as TileMatmul
