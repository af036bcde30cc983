# SPDX-License-Identifier: Apache-2.0
"""Products summed over the batch in pieces (split-K), for weight gradients on a CUDA device.

Each element of a weight's gradient is a sum over the batch. With one thread block per tile, most of
the device would be idle: a layer of 64 x 16 is one tile. So the batch is split into pieces; the
products over the pieces are computed in parallel and added in order. The number of pieces depends
only on the layer's shape. The final addition is a column sum (`column_sums.py`) with a column for
each element and a row for each piece. If there are many pieces, several threads share an element.

Cost: the partial products, at most 17 MB, are written and read once. A layer of more than 264 tiles
has one piece, as large as its gradient.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T
from tvm.target import Target

from sparsetrain.backends.cuda.device import has_tensor_cores
from sparsetrain.backends.cuda.schedule.column_sums import THREADS, Columns, launch
from sparsetrain.backends.cuda.schedule.tile_kinds import kind_of, scheduled
from sparsetrain.backends.cuda.schedule.tiles import Store, TiledProduct, wide
from sparsetrain.kernels.builder import buffer, extents, kernel

_THREADS = 264 * 256  # two blocks of 256 per multiprocessor of a large device
_MOST_PIECES = 132
_LONG = 1024  # float32 sums with fewer terms, if their number is static, are not split
_ALONE = 8  # most pieces that a single thread adds
_MOST_TOGETHER = 32  # most threads that share an element


def long_product(
    builder: relax.BlockBuilder,
    a: relax.Expr,
    b: relax.Expr,
    half: str | None = None,
) -> relax.Expr | None:
    """Multiply the transpose of `a` (K, M) by `b` (K, N), with K split into pieces.

    Parameters
    ----------
    builder : relax.BlockBuilder
        The builder to which the kernels and their calls are added.
    a, b : relax.Expr
        Matrices; K is usually symbolic.
    half : str, optional
        Half-precision dtype of the factors; by default they are float32.

    Returns
    -------
    relax.Expr or None
        The product, or None if there is no kernel for it on the target or K is short.
    """
    if not _fits(a.ty, b.ty, half):
        return None
    shape = int(a.ty.shape[1]), int(b.ty.shape[1])
    name = f"{'half_' if half else ''}matmul_tn_pieces"
    product, pieces = _kernel((a.ty, b.ty), shape, half, name)
    parts = relax.call_tir(
        builder.add_func(product, name), [a, b], relax.TensorType((pieces, *shape), "float32")
    )
    total = builder.add_func(sum_kernel(shape, pieces), "sum_of_pieces")
    return relax.call_tir(total, [builder.emit(parts)], relax.TensorType(shape, "float32"))


def _fits(a: Any, b: Any, half: str | None) -> bool:
    shape = [a.shape[1], b.shape[1]]
    if not all(isinstance(extent, tirx.IntImm) for extent in shape):
        return False
    if half:
        return has_tensor_cores(Target.current())
    # Products with one column have a better kernel (`column_sums`); short sums are not worth it.
    is_float = str(a.dtype) == str(b.dtype) == "float32"
    is_short = isinstance(a.shape[0], tirx.IntImm) and int(a.shape[0]) < _LONG
    return is_float and 1 not in map(int, shape) and not is_short


def _kernel(
    types: tuple[Any, Any], shape: tuple[int, int], half: str | None, name: str
) -> tuple[tirx.PrimFunc, int]:
    """Return the kernel ``parts[p] = a[p].T @ b[p]`` for pieces p of K, and their number."""
    with kernel(name) as built:
        (terms,) = extents(1)
        matrices = [
            buffer(side, (terms, matrix.shape[1]), str(matrix.dtype))
            for side, matrix in zip(("left", "right"), types, strict=True)
        ]
        kind = kind_of(shape[0], shape[1], half)
        tiles = -(-shape[0] // kind.length) * -(-shape[1] // kind.length)
        pieces = min(_MOST_PIECES, max(1, _THREADS // kind.threads // tiles))
        parts = buffer("parts", (pieces, *shape), "float32")
        T.evaluate(tirx.const(0, "int32"))
    left, right = (kind.operand(matrix, 1, 0) for matrix in matrices)
    product = TiledProduct(left, right, wide(shape[0]), wide(shape[1]), pieces)
    return scheduled(built.get(), product, kind, lambda place: _into(parts, place.piece)), pieces


def _into(parts: Any, piece: Any) -> Store:
    return lambda i, j, value: T.buffer_store(parts, value, [piece, i, j])


def sum_kernel(shape: tuple[int, int], pieces: int) -> tirx.PrimFunc:
    """Return the kernel that adds the float32 partial products (P, rows, columns) over P."""
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
    """Return how many threads add the pieces of an element: a power of two."""
    return min(_MOST_TOGETHER, 1 << max(0, (pieces - 1) // _ALONE).bit_length())
