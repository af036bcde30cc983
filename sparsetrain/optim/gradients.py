# SPDX-License-Identifier: Apache-2.0
"""Gradients before a step: finiteness, global norm, accumulation.

All functions accept a mix of dense tensors and `RowSparse`. They coalesce row-sparse gradients
first: the norm of uncoalesced duplicates is wrong, and accumulated duplicates grow without bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from math import isfinite, prod
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain import runtime
from sparsetrain.backend import backend_at
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.builder import buffer, extents, kernel, scalar
from sparsetrain.optim.update.check_kernel import which_nonfinite
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import backend_kernel
from sparsetrain.runtime.pool import scratch_tensor
from sparsetrain.runtime.tensors import on_host, target_of, to_device
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.system.argument_checks import is_number

Gradient = NDArray | RowSparse

BLOCK = 1024  # elements in one partial sum
LANES = 8  # running sums within a block, added at its end


def accumulate_(
    gradients: Mapping[str, Gradient],
    acc: MutableMapping[str, Gradient],
    weight: float = 1.0,
    *,
    coalesce: bool = True,
) -> None:
    """Add ``weight * gradients`` to an accumulator, which `Optimizer.apply_` accepts as gradients.

    Losses are means over a batch, so ``weight`` is a micro-batch's share of the batch's rows.

    Parameters
    ----------
    gradients : mapping of str to Tensor or RowSparse
        Gradients of one micro-batch.
    acc : dict
        The accumulator, which is changed. Start with ``{}``.
    weight : float
        Factor of the gradients.
    coalesce : bool
        Sum duplicates of row-sparse gradients now, so that the accumulator has one row for each
        touched row. Otherwise it keeps the entries of all micro-batches for the optimizer to sum,
        which takes less time and more memory.

    Raises
    ------
    ConfigError
        If a gradient's kind differs from the accumulated gradient of the same name, or the weight
        is not a finite number; nothing is changed then.
    """
    if not (is_number(weight) and isfinite(weight)):
        raise ConfigError(f"accumulate_: weight is {weight!r:.60}; it must be a finite number")
    for name, gradient in gradients.items():
        if name in acc and _kind(acc[name]) != _kind(gradient):
            raise ConfigError(
                f"accumulate: gradient of {name!r} is {_kind(gradient)}, but the accumulator has "
                f"{_kind(acc[name])}"
            )
    for name, gradient in gradients.items():
        if isinstance(gradient, RowSparse):
            part = gradient.coalesce() if coalesce else gradient
            joined = _joined(acc.get(name), part, weight)
            acc[name] = joined.coalesce() if coalesce else joined
        elif name in acc:
            _scale_(_flat(acc[name]), _flat(gradient), weight, add=True)
        else:
            acc[name] = _scaled(gradient, weight)


def _scaled(tensor: NDArray, weight: float) -> NDArray:
    """Return a tensor times a number."""
    out = scratch_tensor(tuple(map(int, tensor.shape)), str(tensor.dtype), tensor)
    _scale_(_flat(out), _flat(tensor), weight, add=False)
    return out


def _joined(acc: Gradient | None, gradient: RowSparse, weight: float) -> RowSparse:
    """Join the entries of an accumulator, and of a gradient times a number."""
    if acc is None:
        values = _scaled(gradient.values, weight)
        return gradient.with_leaves((gradient.indices, values, *gradient.leaves[2:]))
    assert isinstance(acc, RowSparse)
    if not on_host(gradient.values) or acc.source is not None or gradient.source is not None:
        return acc + gradient.scale(weight)
    before, width = int(acc.values.shape[0]), gradient.width
    values = runtime.empty((before + int(gradient.values.shape[0]), width), gradient.dtype)
    runtime.as_numpy(values, writable=True)[:before] = runtime.as_numpy(acc.values)
    _scale_(_flat(values), _flat(gradient.values), weight, add=False, first=before * width)
    pieces = [runtime.as_numpy(each.indices) for each in (acc, gradient)]
    indices = runtime.as_tensor(np.concatenate(pieces))
    return RowSparse(indices, values, gradient.num_rows, shape=gradient.shape)


def _scale_(out: NDArray, tensor: NDArray, weight: float, *, add: bool, first: int = 0) -> None:
    kernel_of = _scale_kernel(target_of(tensor), str(tensor.dtype), add)
    kernel_of(tensor, out, weight, first)


def nonfinite(loss: NDArray | None, gradients: Mapping[str, Gradient]) -> str | None:
    """Describe the first array with NaN or infinity; None if all are finite.

    The loss alone is not enough: a maximum or a mask may turn NaN into a number.
    Cost: one pass, one launch.
    """
    values = [*map(_values, gradients.values())]
    if loss is not None:  # the summed loss of a split batch is on the host
        values.insert(0, to_device(loss, values[0].device) if values else loss)
    places = which_nonfinite(values)
    return problem_of(places[0], loss, gradients) if places else None


def problem_of(place: int, loss: NDArray | None, names: Iterable[str]) -> str:
    """Describe the array at a position among the loss, if any, and the gradients."""
    if loss is not None and place == 0:
        return f"the loss is {float(runtime.as_numpy(loss))}"
    return f"the gradient of {[*names][place - (loss is not None)]!r} is not finite"


def is_finite(loss: NDArray | None) -> bool:
    """Return whether a loss is finite; None counts as finite."""
    return loss is None or bool(np.isfinite(runtime.as_numpy(loss)))


def _flat(tensor: NDArray) -> NDArray:
    return tensor._create_view((prod(map(int, tensor.shape)),))


def coalesced(gradients: Mapping[str, Gradient]) -> dict[str, Gradient]:
    """Return the gradients with duplicates in row-sparse ones summed."""
    return {n: g.coalesce() if isinstance(g, RowSparse) else g for n, g in gradients.items()}


def global_norm(gradients: Mapping[str, Gradient]) -> float:
    """Return the square root of the sum of all squares, in float64 and in a fixed order.

    Duplicates are summed first, so this is the norm of the densified gradients.
    """
    partial = [_squares_of(_values(each)) for _, each in sorted(coalesced(gradients).items())]
    total = 0.0
    for each in backend_at(partial[0]).totals(partial) if partial else []:
        total += each  # Python's `sum` would round differently
    return float(np.sqrt(total))


def block_squares(values: NDArray) -> np.ndarray:
    """Return sums of squares over blocks of a tensor, in float64 and in a fixed order."""
    return runtime.as_numpy(_squares_of(values))


def _squares_of(values: NDArray) -> NDArray:
    size = prod(map(int, values.shape))
    partial = scratch_tensor((-(-size // BLOCK),), "float64", values)
    _squares(target_of(values), str(values.dtype))(_flat(values), partial)
    return partial


def _values(gradient: Gradient) -> NDArray:
    return gradient.values if isinstance(gradient, RowSparse) else gradient


def _kind(gradient: Gradient) -> tuple[Any, ...]:
    form = "row-sparse" if isinstance(gradient, RowSparse) else "dense"
    return form, tuple(map(int, gradient.shape)), str(gradient.dtype)


def scale_kernel(dtype: str, add: bool) -> PrimFunc:
    """Build ``out[first + n] = weight * values[n]``, added to the old values if `add`.

    Arguments: values (n,), out (m,), weight, first.
    """
    with kernel() as built:
        size, room = extents(2)
        values, out = buffer("values", (size,), dtype), buffer("out", (room,), dtype)
        weight, first = scalar("weight", dtype), scalar("first", "int64")
        with T.parallel(0, tirx.ceildiv(size, BLOCK)) as block:
            begin = T.Bind(block * BLOCK)
            with T.serial(0, tirx.min(BLOCK, size - begin)) as i:
                value = T.Bind(values[begin + i] * weight)
                place = first + begin + i
                T.buffer_store(out, out[place] + value if add else value, [place])
    return built.get()


def squares_kernel(dtype: str) -> PrimFunc:
    """Build sums of squares over blocks of (n,) elements, in float64."""
    with kernel() as built:
        (size,) = extents(1)
        values = buffer("values", (size,), dtype)
        partial = buffer("partial", (tirx.ceildiv(size, BLOCK),), "float64")
        with T.parallel(0, tirx.ceildiv(size, BLOCK)) as block:
            sums = T.alloc_local((LANES,), "float64")
            begin = T.Bind(block * BLOCK)
            count = T.Bind(tirx.min(BLOCK, size - begin))
            with T.vectorized(0, LANES) as lane:
                T.buffer_store(sums, tirx.const(0, "float64"), [lane])
            with T.serial(0, tirx.floordiv(count, LANES)) as i, T.vectorized(0, LANES) as lane:
                value = tirx.Cast("float64", values[begin + i * LANES + lane])
                T.buffer_store(sums, sums[lane] + value * value, [lane])
            with T.serial(0, tirx.floormod(count, LANES)) as i:
                rest = values[begin + tirx.floordiv(count, LANES) * LANES + i]
                value = tirx.Cast("float64", rest)
                T.buffer_store(sums, sums[0] + value * value, [0])
            for lane in range(1, LANES):
                T.buffer_store(sums, sums[0] + sums[lane], [0])
            T.buffer_store(partial, sums[0], [block])
    return built.get()


_scale_kernel = backend_kernel("gradients times a number", scale_kernel)
_squares = backend_kernel("sum of squares", squares_kernel)
