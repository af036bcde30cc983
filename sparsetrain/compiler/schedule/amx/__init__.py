# SPDX-License-Identifier: Apache-2.0
"""bfloat16 products on a CPU with tile registers (AMX)."""

from sparsetrain.compiler.schedule.amx.matmul import TileMatmul as TileMatmul
