# SPDX-License-Identifier: Apache-2.0
"""Register tile: the innermost tile of a product, sized by the registers of a CPU core.

A tile of `rows` x `columns` accumulators must hide the latency of fused multiply-adds (about eight
must be in flight) and leave registers for one row of the right operand. 8 x 2 vectors do both with
AVX-512, which has 32 registers, and 6 x 2 vectors with AVX, which has 16.

The width of a vector comes from the target's features. `llvm_get_vector_width` is not used, because
in TVM 0.27 it returns 512 for every x86 CPU.
"""

from typing import NamedTuple

from tvm import DataType
from tvm.target import Target
from tvm.target.codegen import target_has_features


class VectorUnit(NamedTuple):
    """The bits of one vector register, and the number of registers."""

    bits: int
    registers: int

    def lanes(self, dtype: str) -> int:
        """Return how many numbers of `dtype` fit into one vector (at least one)."""
        return max(1, self.bits // DataType(dtype).bits)


class RegisterTile(NamedTuple):
    """Rows and columns of a product that one core accumulates in registers."""

    rows: int
    columns: int


# CPU feature -> its registers; the first feature that the target has is used.
_UNITS = (
    ("avx512f", VectorUnit(512, 32)),
    ("avx", VectorUnit(256, 16)),
    ("neon", VectorUnit(128, 32)),
)
_BASELINE = VectorUnit(128, 16)


def vector_unit(target: Target) -> VectorUnit:
    """Return the vector registers of a CPU target; plain `llvm` has 16 registers of 128 bits."""
    return next((unit for name, unit in _UNITS if target_has_features(name, target)), _BASELINE)


def register_tile(target: Target, dtype: str, columns: int | None) -> RegisterTile:
    """Return the tile for a product of `columns` columns (None: symbolic).

    If the columns fit into one vector, a row of the tile has one vector, otherwise two.
    """
    unit = vector_unit(target)
    lanes = unit.lanes(dtype)
    vectors = 1 if columns is not None and columns <= lanes else 2
    return RegisterTile(rows=8 if unit.registers >= 32 else 6, columns=vectors * lanes)
