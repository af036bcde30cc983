# SPDX-License-Identifier: Apache-2.0
"""Hand-written CUDA kernels that a step or an optimizer may launch, each by a name of its own."""

from __future__ import annotations

from collections.abc import Iterator

import tvm

from sparsetrain.backends.cuda import attention, binned
from sparsetrain.backends.cuda.indexing import write_kernel
from sparsetrain.backends.cuda.interaction.backward import backward_kernel
from sparsetrain.backends.cuda.interaction.forward import forward_kernel
from sparsetrain.backends.cuda.kernel_table import KERNELS, LOOPS, lookup_kernel
from sparsetrain.backends.cuda.schedule.running_sum import running_sum_kernel
from sparsetrain.backends.cuda.sparse import row_kernels as rows
from sparsetrain.backends.cuda.sparse.coalesce_plan import plan_kernel, short_plan_kernel
from sparsetrain.backends.cuda.sparse.runs import chunk_sums_kernel, segment_sum_kernel
from sparsetrain.backends.cuda.update import arrays as cuda_arrays
from sparsetrain.backends.cuda.update import update_kernels as optim
from sparsetrain.embedding import lookup_kernels as embedding
from sparsetrain.models.binned import Sizes
from sparsetrain.ops.indexing.writes import REDUCTIONS
from sparsetrain.ops.ragged import row_kernels as ragged
from sparsetrain.ops.ragged.attention_blocks import Attention
from sparsetrain.optim import OPTIMIZERS
from sparsetrain.optim.update.check_kernel import nonfinite_kernel

WIDTHS = (16, 128, 3)  # a row in four threads, in a warp, and one that no vector divides
FEW = ("adagrad", "adam", "rowwise_adagrad")


def all_kernels() -> dict[str, tvm.tirx.PrimFunc]:
    """Name -> kernel, not compiled yet."""
    return dict(_named(WIDTHS, tuple(OPTIMIZERS)))


def few_kernels() -> dict[str, tvm.tirx.PrimFunc]:
    """Every kind of kernel, in one width and for few formulas."""
    return dict(_named(WIDTHS[:1], FEW))


def _named(
    widths: tuple[int, ...], formulas: tuple[str, ...]
) -> Iterator[tuple[str, tvm.tirx.PrimFunc]]:
    for index in ("int32", "int64"):
        yield f"plan_{index}", plan_kernel(index)
        yield f"short_plan_{index}", short_plan_kernel(index)
    yield from _by_width(widths)
    for name in formulas:
        yield from _of_optimizer(name, OPTIMIZERS[name](0.1).rule().spec, widths)
    yield from _of_operators()
    yield from _of_stored_tables()
    yield from _of_ragged_rows()
    yield "nonfinite", nonfinite_kernel((("float32", 2),) * 2, search=cuda_arrays.search_all)
    yield "squares", cuda_arrays.squares_kernel("float32")


def _by_width(widths: tuple[int, ...]) -> Iterator[tuple[str, tvm.tirx.PrimFunc]]:
    for width in widths:
        yield f"lookup{width}", lookup_kernel(width, "float32", "int64")
        yield (
            f"bag{width}_sum",
            embedding.bag_kernel(width, "float32", "int32", 26, False, False, LOOPS),
        )
        yield f"chunks{width}", chunk_sums_kernel(width, "float32", False)
        yield f"sum{width}", segment_sum_kernel(width, "float32", False)
        yield f"pairs{width}", forward_kernel(26, width, "float32")
        yield f"pairs_back{width}", backward_kernel(26, width, "float32")
    yield "bag_mean", embedding.bag_kernel(16, "float32", "int32", 26, True, False, LOOPS)
    yield "bag_weighted", embedding.bag_kernel(16, "float32", "int32", 26, False, True, LOOPS)
    yield "bag_source", embedding.bag_source_kernel(26, "int32", LOOPS)
    yield "mean_back", embedding.bag_mean_cotangent_kernel(16, "float32", 26, True, LOOPS)
    yield "weighted", embedding.weighted_values_kernel(16, "float32", LOOPS)
    yield "weights_back", embedding.weight_cotangent_kernel(16, "float32", "int32", LOOPS)
    yield "chunks_pooled", chunk_sums_kernel(16, "float32", True)
    yield "sum_pooled", segment_sum_kernel(16, "float32", True)
    for pooled in (False, True):
        yield f"scatter_{pooled}", rows.scatter_add_kernel(16, "float32", "int32", pooled)
    yield "spread", rows.spread_kernel(16, "float32", "int32")
    yield "edges_of_rows", rows.rows_below_kernel("int32")
    yield "differ", rows.differ_kernel("int32")
    yield "fill", rows.fill_kernel("int32")
    yield "count_up", rows.count_up_kernel()
    yield "squares_of_rows", rows.row_squares_kernel(16, "float32")
    yield "total_of_squares", cuda_arrays.total_kernel("float64")
    yield "many_pairs", forward_kernel(250, 16, "float32")
    yield "many_pairs_back", backward_kernel(250, 16, "float32")


def _of_operators() -> Iterator[tuple[str, tvm.tirx.PrimFunc]]:
    """What takes the place of kernels of TVM's."""
    for width in (1, 300):  # also a number, and more than a block has threads
        yield f"scatter{width}", rows.scatter_add_kernel(width, "float32", "int64", False)
        yield f"write{width}", write_kernel(width, "float32", REDUCTIONS["max"])
    sizes = Sizes(inputs=26, numbers=13, bins=33, width=16, has_flags=True, dtype="float32")
    yield "binned", binned.forward_kernel(sizes)
    yield "binned_back", binned.backward_kernel(sizes)
    yield "running_sum", running_sum_kernel("float32", "float32", False)
    yield "running_sum_before", running_sum_kernel("int32", "int64", True)


def _of_stored_tables() -> Iterator[tuple[str, tvm.tirx.PrimFunc]]:
    """What reads and writes tables that are not float32; of eight bytes at a time, not sixteen."""
    for dtype in ("bfloat16", "float16", "uint8"):
        yield f"{dtype}_lookup", lookup_kernel(16, dtype, "int64")
        yield f"{dtype}_bag", embedding.bag_kernel(16, dtype, "int32", 26, False, True, LOOPS)
    for dtype in ("bfloat16", "float16"):
        back = embedding.weight_cotangent_kernel(16, dtype, "int32", LOOPS)
        yield f"{dtype}_weights_back", back
        for name in FEW:
            spec = OPTIMIZERS[name](0.1).rule().spec
            kernel = optim.row_update_kernel(spec, 16, dtype, "int32", False)
            yield f"{dtype}_rows_{name}", kernel
        for name in ("adam", "rowwise_adagrad"):
            spec = OPTIMIZERS[name](0.1).rule().spec
            yield f"{dtype}_dense_{name}", optim.dense_update_kernel(spec, dtype)
            plain = spec._replace(scaled=False, clipped=False)
            yield f"{dtype}_replay_{name}", optim.catch_up_kernel(plain, 16, dtype, "int32", True)


def _of_ragged_rows() -> Iterator[tuple[str, tvm.tirx.PrimFunc]]:
    """What models of sequences launch, and the softmax over a table."""
    for name in ragged.KERNELS:
        variant = (16, "float32") * (2 if name == "ragged_expand" else 1)
        yield name, KERNELS[name](*variant)
    of = Attention(width=32, heads=2, causal=True, scale=0.25, dtype="float32")
    for name in (name for name, made in attention.KERNELS.items() if made):
        yield name, KERNELS[name](of, 50)
    yield "ragged_attention_whole", KERNELS["ragged_attention"](of._replace(causal=False))
    yield "softmax_loss", KERNELS["linear_cross_entropy"](300, "float32", "int32")
    yield "scale_rows", KERNELS["scale_rows"](300, "float32")


def _of_optimizer(name: str, spec, widths) -> Iterator[tuple[str, tvm.tirx.PrimFunc]]:
    """The path that every formula has; widths, stamps and replays for one of each kind."""
    for width in widths if name == "adagrad" else widths[:1]:
        kernel = optim.row_update_kernel(spec, width, "float32", "int32", False)
        yield f"rows{width}_{name}", kernel
    yield f"all_{name}", cuda_arrays.foreach_kernel(spec, "float32", (2, 1))
    if name in ("adam", "rowwise_adagrad"):
        lagging = spec._replace(lags=True)
        noting = optim.row_update_kernel(lagging, 16, "float32", "int64", True)
        yield f"rows_stamped_{name}", noting
        yield f"dense_{name}", optim.dense_update_kernel(spec, "float32")
        plain = spec._replace(scaled=False, clipped=False)
        yield f"replay_{name}", optim.catch_up_kernel(plain, 16, "float32", "int32", False)
        yield f"replay_table_{name}", optim.catch_up_kernel(plain, 16, "float32", None, False)
