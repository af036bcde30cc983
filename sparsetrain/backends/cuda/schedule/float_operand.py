# SPDX-License-Identifier: Apache-2.0
"""One operand of a float32 product: from global memory, via registers, to shared memory.

A tile is `length` adjacent rows of the left operand or columns of the right operand (the operand's
own axis), times `DEPTH` steps of `k`. In shared memory the numbers of one step are contiguous for
any layout of the matrix, so a thread reads four at a time. The numbers of a step are padded by 4:
16-byte reads stay aligned, and if `k` is contiguous in memory, at most two stores of a warp
conflict in a bank.

Tiles are read ahead into registers, 16 bytes at a time if the rows of the matrix allow this.
Elements past an edge are zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

DEPTH = 16  # steps of `k` in a tile


@dataclass(frozen=True)
class FloatOperand:
    """The layout of an operand in memory, and of its tile in shared memory.

    Parameters
    ----------
    source : buffer
        A float32 matrix.
    axis, inner : int
        Dimensions of the operand's own axis (rows of the left, columns of the right) and of `k`.
    length : int
        Extent of a tile along the operand's own axis.
    """

    source: Any
    axis: int
    inner: int
    length: int

    @property
    def steps_lie_together(self) -> bool:
        """Whether `k` is contiguous in memory."""
        return self.inner > self.axis

    @property
    def pitch(self) -> int:
        """Distance in numbers from one step of the tile to the next."""
        return self.length + 4

    @property
    def size(self) -> int:
        """How many numbers a tile takes in shared memory, including padding."""
        return self.pitch * DEPTH

    @property
    def lanes(self) -> int:
        """Numbers per memory access: 4, 2 or 1, the largest that divides the length of a row."""
        contiguous = int(self.source.shape[1])
        return next(n for n in (4, 2, 1) if contiguous % n == 0)


class FloatReader:
    """Emits the code that moves tiles to shared memory; created once inside a kernel."""

    def __init__(self, operand: FloatOperand, thread: Any, threads: int, first: Any) -> None:
        self.operand, self._thread, self._threads = operand, thread, threads
        self._first = first  # the tile's first index along the own axis, int64
        self._accesses = operand.length * DEPTH // operand.lanes // threads
        self._ahead = T.alloc_local((self._accesses * operand.lanes,), "float32")

    def read(self, k: Any, end: Any) -> None:
        """Read the tile that begins at step `k` into registers; steps from `end` on are zero."""
        operand, lanes = self.operand, self.operand.lanes
        with T.unroll(0, self._accesses) as access:
            place, step = self._where(access)
            own = T.Bind(self._first + tirx.Cast("int64", place))
            inner = T.Bind(k + tirx.Cast("int64", step))
            index = [own, inner] if operand.axis == 0 else [inner, own]
            with T.If(tirx.all(own < operand.source.shape[operand.axis], inner < end)):
                with T.Then(), T.vectorized(0, lanes) as lane:
                    value = operand.source[index[0], index[1] + lane]
                    T.buffer_store(self._ahead, value, [access * lanes + lane])
                with T.Else(), T.vectorized(0, lanes) as lane:
                    zero = tirx.const(0, "float32")
                    T.buffer_store(self._ahead, zero, [access * lanes + lane])

    def store(self, shared: Any, tile: int) -> None:
        """Store the elements in registers to the tile in shared memory."""
        operand, lanes = self.operand, self.operand.lanes
        with T.unroll(0, self._accesses) as access:
            place, step = self._where(access)
            first = T.Bind(tile + step * operand.pitch + place)
            if operand.steps_lie_together:
                for lane in range(lanes):
                    value = self._ahead[access * lanes + lane]
                    T.buffer_store(shared, value, [first + lane * operand.pitch])
            else:
                with T.vectorized(0, lanes) as lane:
                    T.buffer_store(shared, self._ahead[access * lanes + lane], [first + lane])

    def _where(self, access: Any) -> tuple[Any, Any]:
        """Return an access's index and step in the tile; adjacent threads read adjacent numbers."""
        number = access * self._threads + self._thread
        if self.operand.steps_lie_together:
            in_row = DEPTH // self.operand.lanes
            return tirx.floordiv(number, in_row), tirx.floormod(number, in_row) * self.operand.lanes
        in_row = self.operand.length // self.operand.lanes
        return tirx.floormod(number, in_row) * self.operand.lanes, tirx.floordiv(number, in_row)
