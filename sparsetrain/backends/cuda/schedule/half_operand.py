# SPDX-License-Identifier: Apache-2.0
"""One operand of a tensor-core product: from global memory, via registers, to shared memory.

A tile is `length` adjacent rows of the left operand or columns of the right operand (the operand's
own axis), times `DEPTH` steps of `k`. In shared memory it consists of words; a word is a pair of
numbers adjacent along `k`. Neither stores nor loads of fragments have bank conflicts with these
layouts:

- if `k` is contiguous in memory: a row for each index of the own axis, with `DEPTH / 2` words and
  4 words of padding;
- otherwise: a row for each pair of steps, with `length` words and 8 words of padding.

Tiles are read ahead into registers in memory order, 16 bytes at a time if the rows of the matrix
allow this, and rounded when they are stored. Elements past an edge are zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.backends.cuda.schedule import half_source

THREADS = 256
DEPTH = 32  # steps of `k` in a tile
_PAIRS = DEPTH // 2


@dataclass(frozen=True)
class HalfOperand:
    """The layout of an operand in memory, and of its tile in shared memory.

    Parameters
    ----------
    source : buffer
        A float32, bfloat16 or float16 matrix.
    axis, inner : int
        Dimensions of the operand's own axis (rows of the left, columns of the right) and of `k`.
    half : str
        Dtype to which float32 is rounded.
    length : int
        Extent of a tile along the operand's own axis.
    """

    source: Any
    axis: int
    inner: int
    half: str
    length: int

    @property
    def pairs_lie_together(self) -> bool:
        """Whether `k` is contiguous in memory."""
        return self.inner > self.axis

    @property
    def is_wide(self) -> bool:
        """Whether the matrix is float32, so that it must be rounded."""
        return str(self.source.dtype) == "float32"

    @property
    def pitch(self) -> int:
        """Distance in words from one row of the tile to the next."""
        return _PAIRS + 4 if self.pairs_lie_together else self.length + 8

    @property
    def words(self) -> int:
        """How many words a tile takes in shared memory, including padding."""
        return self.pitch * (self.length if self.pairs_lie_together else _PAIRS)

    @property
    def lanes(self) -> int:
        """Numbers per memory access: 8, 4, 2 or 1, by the dtype, layout and length of a row."""
        contiguous = int(self.source.shape[1])
        most = 8 if not self.is_wide and self.pairs_lie_together else 4
        return next(n for n in (8, 4, 2, 1) if n <= most and contiguous % n == 0)

    @property
    def unit(self) -> tuple[int, int]:
        """The size of a unit, which a thread handles at once: own indices, and steps of `k`."""
        return (1, max(self.lanes, 2)) if self.pairs_lie_together else (self.lanes, 2)

    @property
    def units(self) -> int:
        """Number of units of a tile that each thread handles."""
        places, steps = self.unit
        return self.length * DEPTH // (places * steps) // THREADS

    def place(self, own: Any, pair: Any) -> Any:
        """Return a word's offset in shared memory, given its index `own` and its pair of steps."""
        along, across = (own, pair) if self.pairs_lie_together else (pair, own)
        return along * self.pitch + across


class Reader:
    """Emits the code that moves tiles to shared memory; created once inside a kernel."""

    def __init__(self, operand: HalfOperand, thread: Any, first: Any) -> None:
        self.operand, self._thread = operand, thread
        self._first = first  # the tile's first index along the own axis, int64
        places, steps = operand.unit
        size = places * steps * operand.units
        self._size = size // operand.units
        self._ahead = (
            T.alloc_local((size,), "float32")
            if operand.is_wide
            else T.alloc_local((size if operand.lanes == 1 else size // 2,), "uint32")
        )
        self._words = T.alloc_local((self._size // 2,), "uint32")

    def read(self, k: Any, end: Any) -> None:
        """Read the tile that begins at step `k` into registers; steps from `end` on are zero."""
        operand = self.operand
        zero = tirx.const(0, self._ahead.dtype)
        with T.unroll(0, int(self._ahead.shape[0])) as n:
            T.buffer_store(self._ahead, zero, [n])
        with T.unroll(0, operand.units) as unit:
            place, step = self._where(unit)
            own = T.Bind(self._first + tirx.Cast("int64", place))
            inner = T.Bind(k + tirx.Cast("int64", step))
            limit = operand.source.shape[operand.axis]
            for number, shift in enumerate(self._accesses()):
                with T.If(tirx.all(own < limit, inner + shift < end)), T.Then():
                    self._access(unit, number, own, inner + shift)

    def _accesses(self) -> range:
        """Return the steps of a unit at which a memory access begins: one step, or two."""
        whole = self.operand.pairs_lie_together and self.operand.lanes > 1
        return range(1 if whole else 2)

    def _where(self, unit: Any) -> tuple[Any, Any]:
        """Return a unit's index and step in the tile; adjacent threads read adjacent units."""
        places, steps = self.operand.unit
        number = unit * THREADS + self._thread
        if self.operand.pairs_lie_together:
            in_row = DEPTH // steps
            return tirx.floordiv(number, in_row), tirx.floormod(number, in_row) * steps
        in_row = self.operand.length // places
        return tirx.floormod(number, in_row) * places, tirx.floordiv(number, in_row) * steps

    def _access(self, unit: Any, number: int, own: Any, inner: Any) -> None:
        operand, lanes = self.operand, self.operand.lanes
        index = [own, inner] if operand.axis == 0 else [inner, own]
        if operand.is_wide:
            start = unit * self._size + number * lanes
            with T.vectorized(0, lanes) as lane:
                value = operand.source[index[0], index[1] + lane]
                T.buffer_store(self._ahead, value, [start + lane])
            return
        address = tirx.address_of(operand.source[tuple(index)])
        if lanes == 1:
            T.buffer_store(self._ahead, half_source.bits(address), [unit * 2 + number])
            return
        start = unit * (self._size // 2) + number * (lanes // 2)
        T.evaluate(half_source.copy(lanes // 2, tirx.address_of(self._ahead[start]), address))

    def store(self, tile: Any) -> None:
        """Round the elements in registers and store them in `tile`, in shared memory."""
        operand = self.operand
        words = self._size // 2
        with T.unroll(0, operand.units) as unit:
            for word in range(words):
                T.buffer_store(self._words, self._word(unit, word), [word])
            place, step = self._where(unit)
            first = T.Bind(operand.place(place, tirx.floordiv(step, 2)))
            with T.vectorized(0, words) as lane:
                T.buffer_store(tile, self._words[lane], [first + lane])

    def _word(self, unit: Any, word: int) -> Any:
        """Return word `word` of a unit: a pair of numbers, rounded if necessary."""
        operand, ahead, lanes = self.operand, self._ahead, self.operand.lanes
        together = operand.pairs_lie_together
        if operand.is_wide:
            low, high = (2 * word, 2 * word + 1) if together else (word, word + lanes)
            start = unit * self._size
            return half_source.pair(operand.half, ahead[start + low], ahead[start + high])
        if lanes == 1:
            return ahead[unit * 2] | (ahead[unit * 2 + 1] << _u32(16))
        start = unit * (self._size // 2)
        if together:
            return ahead[start + word]
        upper, lower = ahead[start + word // 2], ahead[start + lanes // 2 + word // 2]
        if word % 2:
            return (upper >> _u32(16)) | (lower & _u32(0xFFFF0000))
        return (upper & _u32(0xFFFF)) | (lower << _u32(16))


def _u32(value: int) -> tirx.IntImm:
    return tirx.const(value, "uint32")
