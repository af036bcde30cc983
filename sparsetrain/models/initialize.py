# SPDX-License-Identifier: Apache-2.0
"""Initial weights by the distributions of the reference DLRM, drawn in place.

Every block of rows has its own counter-based stream, keyed by (seed, name, block), so its numbers
do not depend on the number, order or storage of tables. Tables are filled `BLOCK` elements at a
time, without a second copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

import numpy as np
from tvm.relax.frontend import nn

from sparsetrain.embedding.layer import Embedding

BLOCK = 1 << 20


def initial_(name: str, view: np.ndarray, layer: Any, seed: int) -> None:
    """Fill a parameter by the layer that it belongs to, see `Model.initialize`; writes `view`."""
    if isinstance(layer, Embedding):
        if layer.deviation is None:
            fill_uniform_(view, float(np.sqrt(1 / len(view))), seed, name)
        else:
            fill_normal_(view, layer.deviation, seed, name)
    else:
        deviation = np.sqrt((2 if view.ndim > 1 else 1) / sum(view.shape))
        fill_normal_(view, float(deviation), seed, name)


def fill_uniform_(out: np.ndarray, bound: float, seed: int, name: str) -> None:
    """Fill a contiguous float array with numbers uniform in [-bound, bound); writes `out`."""
    flat = out.reshape(-1)
    for block, start in enumerate(range(0, flat.size, BLOCK)):
        _draw_(flat[start : start + BLOCK], bound, _stream(seed, name, block))


def _draw_(part: np.ndarray, bound: float, stream: np.random.Generator) -> None:
    draw = stream.random(part.size, dtype=np.float32)
    part[...] = (2.0 * draw - 1.0) * np.float32(bound)


def uniform_rows(
    rows: int, width: int, bound: float, seed: int, name: str
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the rows that `fill_uniform_` gives a (rows, width) array, and the first's number."""
    first, rest = 0, np.empty(0, np.float32)
    for block, start in enumerate(range(0, rows * width, BLOCK)):
        part = np.empty(min(BLOCK, rows * width - start), np.float32)
        _draw_(part, bound, _stream(seed, name, block))
        part = np.concatenate([rest, part]) if rest.size else part
        whole = len(part) // width
        yield first, part[: whole * width].reshape(whole, width)
        first, rest = first + whole, part[whole * width :]


def fill_normal_(out: np.ndarray, deviation: float, seed: int, name: str) -> None:
    """Fill a contiguous float array with normal numbers of mean 0; writes `out`."""
    flat = out.reshape(-1)
    for block, start in enumerate(range(0, flat.size, BLOCK)):
        part = flat[start : start + BLOCK]
        draw = _stream(seed, name, block).standard_normal(part.size, dtype=np.float32)
        part[...] = draw * np.float32(deviation)


def _stream(seed: int, name: str, block: int) -> np.random.Generator:
    key = np.random.SeedSequence([seed, crc32(name.encode()), block])
    return np.random.Generator(np.random.Philox(key))


def initial_constants(params: Mapping[str, nn.Parameter]) -> dict[str, float]:
    """Return the values of parameters that begin with one: norms, and those that say so.

    A vector called ``weight`` is the gain of a norm, 1; a ``bias`` beside it is 0.
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
