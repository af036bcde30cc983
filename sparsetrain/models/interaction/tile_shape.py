# SPDX-License-Identifier: Apache-2.0
"""Tile shape of the interaction's float32 kernels: the most sums that a CPU's registers hold.

A larger tile is loaded and stored at every step: 16 rows of 16 columns need 32 registers of 256
bits.
"""

from __future__ import annotations

from typing import NamedTuple

from sparsetrain.compiler.schedule.register_tile import VectorUnit
from sparsetrain.models.interaction.cpu_common import LANES, round_up

# Registers with independent sums, to hide the latency of an addition.
_MIN_SUMS = 8
_FLOAT_BITS = 32


class Tile(NamedTuple):
    """Sums in registers.

    Parameters
    ----------
    accumulators : int
        Vectors of `LANES` numbers.
    registers : int
        Registers of each.
    max_lanes : int
        Most columns of a tile backward.
    """

    accumulators: int
    registers: int
    max_lanes: int

    def forward_rows(self, rows: int) -> list[int]:
        """Heights of the fewest, almost equal tiles of `rows` rows."""
        tiles = -(-rows // self.accumulators)
        return [(n + 1) * rows // tiles - n * rows // tiles for n in range(tiles)]

    def backward_rows(self, rows: int, lanes: int) -> int:
        """Rows of a tile of `lanes` columns, with the least padding."""
        vectors = round_up(lanes, LANES) // LANES
        largest = max(1, min(rows, self.accumulators // vectors))
        smallest = min(largest, -(-_MIN_SUMS // (self.registers * vectors)))
        return min(range(smallest, largest + 1), key=lambda n: (round_up(rows, n), -n))


def select_tile(unit: VectorUnit) -> Tile:
    """Select the largest tile that leaves registers for a row of the other operand and a factor."""
    registers = -(-LANES * _FLOAT_BITS // unit.bits)
    fitting = (unit.registers - 1) // registers - 1
    max_lanes = 4 * LANES if fitting >= LANES else LANES
    return Tile(max(1, min(LANES, fitting)), registers, max_lanes)
