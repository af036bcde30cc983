# SPDX-License-Identifier: Apache-2.0
"""Initial weights: the laws of the reference DLRM, drawn so that a table of any size fits.

Every block of rows has its own counter-based stream, keyed by (seed, name, block): the numbers do
not depend on how many tables there are, in what order they are made, or how they are stored.
Tables are filled in place, `BLOCK` elements at a time, so initialising needs no second copy.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

BLOCK = 1 << 20


def fill_uniform_(out: np.ndarray, bound: float, seed: int, name: str) -> None:
    """Fill a contiguous float array with numbers uniform in [-bound, bound); writes `out`."""
    flat = out.reshape(-1)
    for block, start in enumerate(range(0, flat.size, BLOCK)):
        part = flat[start : start + BLOCK]
        draw = _stream(seed, name, block).random(part.size, dtype=np.float32)
        part[...] = (2.0 * draw - 1.0) * np.float32(bound)


def fill_normal_(out: np.ndarray, deviation: float, seed: int, name: str) -> None:
    """Fill a contiguous float array with normal numbers of mean 0; writes `out`."""
    draw = _stream(seed, name, 0).standard_normal(out.size, dtype=np.float32)
    out.reshape(-1)[...] = draw * np.float32(deviation)


def fill_layer_(out: np.ndarray, seed: int, name: str) -> None:
    """Fill the weight (out, in) or the bias (out,) of a linear layer; writes `out`.

    A weight's law is Glorot and Bengio's (2010, "Xavier"), of cross layers too; their biases begin
    as 0 (both as in TorchRec's ``LowRankCrossNet``), so that a layer begins as a plain product.
    """
    if out.ndim == 1 and name.startswith("interaction."):
        out[...] = 0
    else:
        fill_normal_(out, float(np.sqrt((2 if out.ndim > 1 else 1) / sum(out.shape))), seed, name)


def _stream(seed: int, name: str, block: int) -> np.random.Generator:
    key = np.random.SeedSequence([seed, crc32(name.encode()), block])
    return np.random.Generator(np.random.Philox(key))
