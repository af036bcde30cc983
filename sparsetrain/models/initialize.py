# SPDX-License-Identifier: Apache-2.0
"""Initial weights, drawn in place from the distributions of the reference DLRM.

Every block of a table has its own counter-based random stream, keyed by (seed, name, block), so its
numbers do not depend on the number, order or storage of tables. Tables are filled `BLOCK` elements
at a time, without a second copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import sqrt
from typing import Any
from zlib import crc32

import numpy as np
from tvm.relax.frontend import nn

from sparsetrain import runtime
from sparsetrain.embedding.layer import Embedding
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.models.layers import named_modules

BLOCK = 1 << 20


Draw = Callable[[np.random.Generator, int], np.ndarray]  # (random stream, count) -> float32 numbers


def constant(shape: Sequence[int], dtype: str) -> nn.Parameter:
    """Make a parameter that no step changes: 0 until `Model.learn` computes its value."""
    made = nn.Parameter(tuple(shape), dtype)
    made.attrs["constant"], made.attrs["initial"] = True, 0
    return made


def initial_params(
    model: Any, names: Iterable[str], seed: int, fill: bool
) -> dict[str, runtime.NDArray]:
    """Return fresh parameters of a `Model` by name, see `Model.initialize`."""
    params, modules, tables = (
        dict(model.named_parameters()),
        dict(named_modules(model)),
        model.tables(),
    )
    constants, initial = initial_constants(params), {}
    for name in names:
        param = params[name]
        shape = tuple(int(extent) for extent in param.shape)
        tensor = initial[name] = runtime.empty(shape, str(param.dtype), f"parameter {name!r}")
        if not fill:
            continue
        view = runtime.as_numpy(tensor, writable=True)
        if name in constants:
            view[...] = constants[name]
        elif name in tables:
            for table, rows in tables[name].items():
                _fill_table_(view[rows], partial(model.draw_of_table, table), seed)
        else:
            owner = modules.get(name.rpartition(".")[0])
            own = param.attrs.get("deviation")
            fill_(view, draw_of(owner, shape) if own is None else normal(own), seed, name)
    return initial


def uniform(bound: float) -> Draw:
    """Return a `Draw` of numbers uniform in [-bound, bound)."""

    def draw(stream: np.random.Generator, count: int) -> np.ndarray:
        return (2.0 * stream.random(count, dtype=np.float32) - 1.0) * np.float32(bound)

    return draw


def normal(deviation: float) -> Draw:
    """Return a `Draw` of normal numbers with mean 0."""

    def draw(stream: np.random.Generator, count: int) -> np.ndarray:
        return stream.standard_normal(count, dtype=np.float32) * np.float32(deviation)

    return draw


def draw_of(layer: Any, shape: Sequence[int]) -> Draw:
    """Return the `Draw` for a parameter, by the layer that holds it; see `Model.initialize`."""
    if isinstance(layer, Embedding):
        deviation = layer.deviation
        return uniform(sqrt(1 / shape[0])) if deviation is None else normal(deviation)
    return normal(sqrt((2 if len(shape) > 1 else 1) / sum(shape)))


def _fill_table_(
    out: np.ndarray, draw_of: Callable[[tuple[int, int]], tuple[Draw, str]], seed: int
) -> None:
    """Fill the table `out`, of any dtype, with initial rows."""
    stored = format_of(str(out.dtype))
    shape = len(out), stored.width(out.shape[1])
    draw, stream = draw_of(shape)
    if shape == out.shape:
        fill_(out, draw, seed, stream)
        return
    for first, rows in drawn_rows(shape, draw, seed, stream):
        out[first : first + len(rows)] = stored.rows(rows)


def fill_(out: np.ndarray, draw: Draw, seed: int, name: str) -> None:
    """Fill the contiguous array `out` from the random streams of `name`."""
    flat = out.reshape(-1)
    for block, start in enumerate(range(0, flat.size, BLOCK)):
        part = flat[start : start + BLOCK]
        part[...] = draw(_stream(seed, name, block), part.size)


def drawn_rows(
    shape: tuple[int, int], draw: Draw, seed: int, name: str
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the blocks that `fill_` writes to an array of this shape, each with its first row."""
    rows, width = shape
    first, rest = 0, np.empty(0, np.float32)
    for block, start in enumerate(range(0, rows * width, BLOCK)):
        part = draw(_stream(seed, name, block), min(BLOCK, rows * width - start))
        part = np.concatenate([rest, part]) if rest.size else part
        whole = len(part) // width
        yield first, part[: whole * width].reshape(whole, width)
        first, rest = first + whole, part[whole * width :]


def _stream(seed: int, name: str, block: int) -> np.random.Generator:
    key = np.random.SeedSequence([seed, crc32(name.encode()), block])
    return np.random.Generator(np.random.Philox(key))


def initial_constants(params: Mapping[str, nn.Parameter]) -> dict[str, float]:
    """Return the initial values of parameters that begin as a constant, such as a norm's.

    A vector called ``weight`` is the gain of a norm, 1; the ``bias`` of the same layer is 0.
    """
    gains = {name for name, p in params.items() if _last(name) == "weight" and len(p.shape) == 1}
    constants = dict.fromkeys(gains, 1.0)
    for name, param in params.items():
        if _last(name) == "bias" and f"{name.removesuffix('bias')}weight" in gains:
            constants[name] = 0.0
        if "initial" in param.attrs:
            constants[name] = param.attrs["initial"]
    return constants


def _last(name: str) -> str:
    return name.rpartition(".")[2]
