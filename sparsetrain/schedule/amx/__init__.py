# SPDX-License-Identifier: Apache-2.0
"""Products of bfloat16 on a CPU with tile registers (AMX)."""

from .matmul import TileMatmul as TileMatmul
