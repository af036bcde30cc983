# SPDX-License-Identifier: Apache-2.0
"""One operand of a tensor-core product: from global memory, via registers, to shared memory.

A tile is `length` neighbours along the operand's own axis times `DEPTH` steps of `k`. In shared
memory it consists of words, each a pair of neighbours in `k`, laid out so that neither stores nor
loads of fragments have bank conflicts:

- `k` contiguous in memory: a row per index of the own axis, `DEPTH / 2` words plus 4;
- otherwise: a row per pair of `k`, `length` words plus 8.

Tiles are read ahead into registers in memory order, 16 bytes at a time if the rows of the matrix
allow it, and rounded when they are stored. Elements past an edge are zero.
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
    """Layout of an operand in memory, and of a block's tile of it.

    Parameters
    ----------
    source : buffer
        A matrix of float32, bfloat16 or float16.
    axis, inner : int
        Dimensions of the operand's own axis (rows of the left, columns of the right) and of `k`.
    half : str
        Dtype to which float32 is rounded.
    length : int
        Extent of a tile along the own axis.
    """

    source: Any
    axis: int
    inner: int
    half: str
    length: int

    @property
    def pairs_lie_together(self) -> bool:
        """Whether neighbours in memory are neighbours in `k`."""
        return self.inner > self.axis

    @property
    def is_wide(self) -> bool:
        """Whether memory holds float32, which must be rounded."""
        return str(self.source.dtype) == "float32"

    @property
    def pitch(self) -> int:
        """Words from one row of the tile to the next."""
        return _PAIRS + 4 if self.pairs_lie_together else self.length + 8

    @property
    def words(self) -> int:
        """Words of a tile."""
        return self.pitch * (self.length if self.pairs_lie_together else _PAIRS)

    @property
    def lanes(self) -> int:
        """Numbers per memory access, as the rows' length allows."""
        contiguous = int(self.source.shape[1])
        most = 8 if not self.is_wide and self.pairs_lie_together else 4
        return next(n for n in (8, 4, 2, 1) if n <= most and contiguous % n == 0)

    @property
    def unit(self) -> tuple[int, int]:
        """Indices of the own axis and steps of `k` that a thread handles at once."""
        return (1, max(self.lanes, 2)) if self.pairs_lie_together else (self.lanes, 2)

    @property
    def units(self) -> int:
        """How many units of a tile each thread handles."""
        places, steps = self.unit
        return self.length * DEPTH // (places * steps) // THREADS

    def place(self, own: Any, pair: Any) -> Any:
        """Return the offset in shared memory of the word of an own index and a pair of `k`."""
        along, across = (own, pair) if self.pairs_lie_together else (pair, own)
        return along * self.pitch + across


class Reader:
    """Moves tiles to shared memory; constructed once inside a kernel."""

    def __init__(self, operand: HalfOperand, thread: Any, first: Any) -> None:
        self.operand, self._thread = operand, thread
        self._first = first  # first index along the own axis, int64
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
        """Return the steps of `k` at which accesses begin: one if `k` is contiguous, else two."""
        whole = self.operand.pairs_lie_together and self.operand.lanes > 1
        return range(1 if whole else 2)

    def _where(self, unit: Any) -> tuple[Any, Any]:
        """Return a unit's own index and step in the tile; adjacent threads read neighbours."""
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
        """Return the pair that is word number `word` of a unit."""
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
