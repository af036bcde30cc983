# SPDX-License-Identifier: Apache-2.0
"""Sum of a matrix that was computed in pieces, in a fixed order.

Each element is a column of the sums in `column_sums.py`, each piece a row. The more pieces, the
more threads share an element: one thread would wait for memory a hundred times.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.compiler.schedule.cuda.column_sums import THREADS, Columns, launch
from sparsetrain.kernels.builder import buffer, kernel

_ALONE = 8  # pieces that a thread adds by itself
_MOST = 32  # threads that share an element


def sum_kernel(shape: tuple[int, int], pieces: int) -> tirx.PrimFunc:
    """Add the pieces (P, rows, columns) of each element, in float32."""
    rows, columns = shape
    with kernel("sum_of_pieces") as built:
        parts = buffer("parts", (pieces, rows, columns), "float32")
        out = buffer("out", (rows, columns), "float32")

        def place(element: Any) -> tuple[Any, Any]:
            return tirx.floordiv(element, columns), tirx.floormod(element, columns)

        def part(piece: Any, element: Any) -> Any:
            row, column = place(element)
            return parts[piece, row, column]

        def store(_piece: Any, element: Any, total: Any) -> None:
            T.buffer_store(out, total, list(place(element)))

        sums = Columns(part, tirx.const(pieces, "int64"), rows * columns)
        launch(sums, store, THREADS * sums.lanes // _threads_of_an_element(pieces), 1)
    return built.get()


def _threads_of_an_element(pieces: int) -> int:
    """A power of two."""
    return min(_MOST, 1 << max(0, (pieces - 1) // _ALONE).bit_length())
