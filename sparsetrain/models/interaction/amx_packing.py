# SPDX-License-Identifier: Apache-2.0
"""Parts of the AMX kernels: loops, arrays, calls, and packing in LLVM IR.

A left operand has rows of bfloat16, a right operand has rows of pairs (see
`sparsetrain.compiler.schedule.amx.helpers`). One instruction rounds two vectors of 16 numbers into
one of 32, so the halves of a row, or two rows that form pairs, are rounded together, to nearest
even.

Packing a sample also prefetches a later one, since it has more rows than the hardware prefetcher
can follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.compiler.schedule.amx.helpers import BEGIN_AND_END
from sparsetrain.compiler.schedule.bf16.helpers import HELPERS
from sparsetrain.kernels.builder import buffer
from sparsetrain.kernels.llvm import LANES, PRAGMA, rounds
from sparsetrain.models.interaction.result_layout import output_width

SAMPLES = 16  # samples per task; arrays are allocated once per task


def forward_arguments(features: int, width: int) -> tuple[Any, Any, Any]:
    """Dense (B, D), embeddings (B, F, D), result (B, D + F (F + 1) / 2); all float32."""
    batch = T.int64()
    return (
        buffer("dense", (batch, width), "float32"),
        buffer("embeddings", (batch, features, width), "float32"),
        buffer("out", (batch, output_width(features, width)), "float32"),
    )


def backward_arguments(features: int, width: int) -> tuple[Any, Any, Any, Any, Any]:
    """The operands, the result's cotangent, and the cotangents of dense and embeddings."""
    batch = T.int64()
    return (
        buffer("dense", (batch, width), "float32"),
        buffer("embeddings", (batch, features, width), "float32"),
        buffer("cotangent", (batch, output_width(features, width)), "float32"),
        buffer("dense_cotangent", (batch, width), "float32"),
        buffer("embeddings_cotangent", (batch, features, width), "float32"),
    )


@contextmanager
def samples_of_tasks(batch: Any, helpers: str) -> Iterator[Any]:
    """Parallel loop over tasks; yields the loop over a task's samples, after allocations."""
    tasks = tirx.ceildiv(batch, SAMPLES)
    with T.attr(0, PRAGMA, helpers), T.parallel(0, tasks) as task:

        @contextmanager
        def samples() -> Iterator[Any]:
            count = tirx.min(batch - task * SAMPLES, tirx.const(SAMPLES, "int64"))
            with T.serial(0, count) as sample:
                yield T.Bind(task * SAMPLES + sample)

        yield samples


def call_(name: str, *arguments: Any) -> None:
    """Call a helper; Python integers are passed as int32."""
    T.evaluate(tirx.call_extern("int32", f"sparsetrain_{name}", *map(_number, arguments)))


def _number(value: Any) -> Any:
    return tirx.const(value, "int32") if isinstance(value, int) else value


def address(array: Any, *indices: Any) -> Any:
    """Address of an element."""
    return T.address_of(tirx.BufferLoad(array, list(indices)))


def long(number: Any) -> Any:
    """Convert a Python integer to an int64 constant."""
    return tirx.const(int(number), "int64")


def lanes(v: Any) -> Any:
    """Indices of the `v`th vector of `LANES` elements."""
    return run(v * LANES, LANES)


def run(first: Any, count: int) -> Any:
    """`count` consecutive indices."""
    stride = 1 if isinstance(first, int) else tirx.const(1, first.ty.dtype)
    return tirx.Ramp(first, stride, count)


def cleared(shape: tuple[int, ...], dtype: str) -> Any:
    """Allocate an array and set all of it to zero, since TVM drops unused parts of arrays."""
    array = T.alloc_buffer(shape, dtype, scope="local")
    rows = shape[0] if len(shape) > 1 else 1
    with T.serial(0, rows) as row, T.serial(0, shape[-1] // LANES) as v:
        zeros = tirx.Broadcast(tirx.const(0, dtype), LANES)
        T.buffer_store(array, zeros, [*([row] if len(shape) > 1 else []), lanes(v)])
    return array


ROW_BYTES = 64  # row of a tile: 32 bfloat16 numbers, 16 pairs or sums
NUMBERS = ROW_BYTES // 2
_ZEROS = "<16 x float> zeroinitializer"
_ROUND = "call <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512"

_DECLARATIONS = """
declare <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float>, <16 x float>)
declare i64 @llvm.smin.i64(i64, i64)
"""


def _define(name: str, arguments: str, lines: Iterable[str]) -> str:
    body = "\n  ".join([*lines, "ret i32 0"])
    return f"""
define linkonce_odr i32 @sparsetrain_{name}({arguments}) alwaysinline nounwind {{
  {body}
}}
"""


def tiles(products: Iterable[tuple[int, int, int]]) -> str:
    """Helpers for each tile register, and for each product (sums, left operand, right operand)."""
    tile = "call void @llvm.x86.tile"
    parameters = "ptr %at, i64 %stride"
    helpers = []
    for n in range(8):
        helpers += [
            _define(f"amx_zero_{n}", "", [f"{tile}zero(i8 {n})"]),
            _define(f"amx_load_{n}", parameters, [f"{tile}loadd64(i8 {n}, {parameters})"]),
            _define(f"amx_store_{n}", parameters, [f"{tile}stored64(i8 {n}, {parameters})"]),
        ]
    for product in products:
        operands = ", ".join(f"i8 {n}" for n in product)
        line = f"call void @llvm.x86.tdpbf16ps({operands})"
        helpers.append(_define("amx_add_" + "_".join(map(str, product)), "", [line]))
    return "".join(helpers)


def rows_of_tiles(rows: Iterable[int]) -> int:
    """Return the argument of ``sparsetrain_amx_rows`` for tiles 0 .. 7 with these rows, all > 0."""
    return int.from_bytes(bytes(rows), "little")


def _slab(columns: int) -> str:
    """Return a helper that rounds 16 rows of 32 or 16 numbers, both as rows and as pairs.

    Rows are stored `stride_to` apart. The first row to read has its own address; after the last
    row, the helper reads the last row again.
    """
    lines = ["%last = sub i64 %rows, 2"]
    for r in range(LANES):
        source = f"%from{r}" if r else "%first"
        lines += [
            f"%at{r} = call i64 @llvm.smin.i64(i64 %last, i64 {r - 1})",
            f"%by{r} = mul i64 %at{r}, %stride",
            f"%from{r} = getelementptr float, ptr %rest, i64 %by{r}",
            f"%low{r} = load <16 x float>, ptr {source}, align 4",
        ]
        high = _ZEROS
        if columns > LANES:
            lines += [
                f"%then{r} = getelementptr float, ptr {source}, i64 {LANES}",
                f"%high{r} = load <16 x float>, ptr %then{r}, align 4",
            ]
            high = f"<16 x float> %high{r}"
        lines += [
            *_prefetch(source, f"row{r}", range(0, columns, LANES)),
            f"%half{r} = {_ROUND}({high}, <16 x float> %low{r})",
            f"%s0r{r} = bitcast <32 x bfloat> %half{r} to <16 x i32>",
            f"%over{r} = mul i64 %stride_to, {r}",
            f"%to{r} = getelementptr i16, ptr %to, i64 %over{r}",
            f"store <16 x i32> %s0r{r}, ptr %to{r}, align 4",
        ]
    lines += rounds("i32")
    for r in range(columns // 2):
        lines += [
            f"%pair{r} = getelementptr i8, ptr %pairs, i64 {ROW_BYTES * r}",
            f"store <16 x i32> %s4r{r}, ptr %pair{r}, align 4",
        ]
    arguments = "ptr %to, i64 %stride_to, ptr %pairs, ptr %first, ptr %rest, i64 %stride"
    return _define(f"amx_slab_{columns}", f"{arguments}, i64 %rows, i64 %ahead", lines)


def _prefetch(source: str, name: str, places: Iterable[int]) -> list[str]:
    lines = []
    for place in places:
        to = f"%{name}at{place}"
        lines += [
            f"{to}by = add i64 %ahead, {place}",
            f"{to} = getelementptr float, ptr {source}, i64 {to}by",
            f"call void @llvm.prefetch.p0(ptr {to}, i32 0, i32 2, i32 1)",
        ]
    return lines


def _pair_rows() -> str:
    """Return a helper that rounds 16 numbers of two rows to 16 pairs; a missing row counts as 0."""
    mixed = ", ".join(f"i32 {n // 2 + LANES * (n % 2)}" for n in range(2 * LANES))
    load = "call <16 x float> @llvm.masked.load.v16f32.p0"
    lines = [
        "%both = icmp sgt i32 %rows, 1",
        "%one = insertelement <16 x i1> poison, i1 %both, i32 0",
        "%mask = shufflevector <16 x i1> %one, <16 x i1> poison, <16 x i32> zeroinitializer",
        *_prefetch("%even", "even", [0]),
        *_prefetch("%odd", "odd", [0]),
        "%a = load <16 x float>, ptr %even, align 4",
        f"%b = {load}(ptr %odd, i32 4, <16 x i1> %mask, {_ZEROS})",
        f"%half = {_ROUND}(<16 x float> %b, <16 x float> %a)",
        "%bits = bitcast <32 x bfloat> %half to <32 x i16>",
        f"%pairs = shufflevector <32 x i16> %bits, <32 x i16> poison, <32 x i32> <{mixed}>",
        "store <32 x i16> %pairs, ptr %to, align 4",
    ]
    return _define("amx_pair", "ptr %to, ptr %even, ptr %odd, i32 %rows, i64 %ahead", lines)


def _prefetch_line() -> str:
    """Return a helper that prefetches a cache line for writing."""
    return _define(
        "amx_prefetch", "ptr %at", ["call void @llvm.prefetch.p0(ptr %at, i32 1, i32 3, i32 1)"]
    )


def symmetric(vectors: int) -> str:
    """Return a helper that rounds a packed strict lower triangle to a symmetric matrix.

    The diagonal and the padding to whole tiles are zeros. A block of 16 x 16 is a part of the
    triangle or its transpose; a diagonal block is both combined by "or", since each of its elements
    is zero in one of them.
    """
    blocks = -(-vectors // LANES)
    steps = -(-vectors // NUMBERS)
    lines = []
    for i in range(blocks):
        for j in range(i + 1):
            lines += _block(i, j, vectors)
    for i in range(blocks):
        for r in range(LANES):
            for k in range(0, blocks, 2):
                high = f"<16 x float> %g{i}x{k + 1}r{r}" if k + 1 < blocks else _ZEROS
                name = f"%row{i}x{k}r{r}"
                begin = (i * LANES + r) * steps * ROW_BYTES + k // 2 * ROW_BYTES
                lines += [
                    f"{name} = {_ROUND}({high}, <16 x float> %g{i}x{k}r{r})",
                    f"{name}to = getelementptr i8, ptr %to, i64 {begin}",
                    f"store <32 x bfloat> {name}, ptr {name}to, align 4",
                ]
    return _define(f"amx_symmetric_{vectors}", "ptr %to, ptr %triangle", lines)


def _block(i: int, j: int, vectors: int) -> list[str]:
    """Return lines that make blocks (i, j) and (j, i); ``%g0x1r2`` is row 2 of block (0, 1)."""
    name = f"b{i}x{j}s"
    lines = []
    for r in range(LANES):
        row, column = i * LANES + r, j * LANES
        count = row - column if row < vectors else 0
        mask = ", ".join(f"i1 {str(n < count).lower()}" for n in range(LANES))
        lines += [
            f"%{name}at{r} = getelementptr float, ptr %triangle, "
            f"i64 {row * (row - 1) // 2 + column}",
            f"%{name}row{r} = call <16 x float> @llvm.masked.load.v16f32.p0("
            f"ptr %{name}at{r}, i32 4, <16 x i1> <{mask}>, {_ZEROS})",
            f"%{name}0r{r} = bitcast <16 x float> %{name}row{r} to <16 x i32>",
        ]
    lines += rounds("i32", name)
    for r in range(LANES):
        transposed = f"%{name}4r{r}"
        if i == j:
            lines.append(f"%{name}or{r} = or <16 x i32> %{name}0r{r}, {transposed}")
            transposed = f"%{name}or{r}"
        else:
            lines.append(f"%g{i}x{j}r{r} = bitcast <16 x i32> %{name}0r{r} to <16 x float>")
        lines.append(f"%g{j}x{i}r{r} = bitcast <16 x i32> {transposed} to <16 x float>")
    return lines


PACKING = "".join(
    [HELPERS, BEGIN_AND_END, _DECLARATIONS, _slab(32), _slab(16), _pair_rows(), _prefetch_line()]
)
