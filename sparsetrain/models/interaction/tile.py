# SPDX-License-Identifier: Apache-2.0
"""How many sums of the interaction's float32 kernels fit a CPU's registers.

What does not fit is loaded and stored at every step of a sum: of 16 registers of 256 bits, 16 rows
of 16 columns would need 32.
"""

from __future__ import annotations

from typing import NamedTuple

from sparsetrain.compiler.schedule.register_tile import VectorUnit
from sparsetrain.models.interaction.parts import LANES, round_up

# Registers whose sums must be under way together to hide what an addition takes.
_FEWEST_SUMS = 8
_FLOAT_BITS = 32


class Tile(NamedTuple):
    """What is summed in registers.

    Parameters
    ----------
    accumulators : int
        Vectors of `LANES` numbers.
    registers : int
        That each of them takes.
    most_lanes : int
        Most columns of a tile backward.
    """

    accumulators: int
    registers: int
    most_lanes: int

    def forward_rows(self, rows: int) -> list[int]:
        """Heights of the tiles, as few as it takes and almost equal, that make `rows` rows."""
        tiles = -(-rows // self.accumulators)
        return [(n + 1) * rows // tiles - n * rows // tiles for n in range(tiles)]

    def backward_rows(self, rows: int, lanes: int) -> int:
        """Rows of a tile of `lanes` columns: enough of them, with the least padding."""
        vectors = round_up(lanes, LANES) // LANES
        most = max(1, min(rows, self.accumulators // vectors))
        fewest = min(most, -(-_FEWEST_SUMS // (self.registers * vectors)))
        return min(range(fewest, most + 1), key=lambda n: (round_up(rows, n), -n))


def tile_of(unit: VectorUnit) -> Tile:
    """The largest tile that leaves room for a row of the other operand and a factor."""
    registers = -(-LANES * _FLOAT_BITS // unit.bits)
    fitting = (unit.registers - 1) // registers - 1
    most_lanes = 4 * LANES if fitting >= LANES else LANES
    return Tile(max(1, min(LANES, fitting)), registers, most_lanes)
