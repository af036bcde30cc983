# SPDX-License-Identifier: Apache-2.0
"""Initial weights: the same numbers for every library, so that their losses can be compared.

Tables are filled block by block: a table of ten million rows is not held twice.
"""

from itertools import pairwise

import numpy as np

from harness.configs import Config

SEED = 20
BLOCK_ROWS = 1 << 16


def fill_table_(table: np.ndarray, number: int) -> None:
    """Fill table `number`, (V, D) float32 or float16, uniformly within ``sqrt(1 / V)``."""
    rng = np.random.default_rng([SEED, number])
    bound = np.float32(np.sqrt(1 / len(table)))
    for start in range(0, len(table), BLOCK_ROWS):
        place = table[start : start + BLOCK_ROWS]
        block = rng.random(place.shape, dtype=np.float32)
        block -= np.float32(0.5)
        np.multiply(block, 2 * bound, out=place, casting="same_kind")


def linear_layers(widths: tuple[int, ...], name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights (out, in) and biases (out,) of an MLP, normal as in the reference DLRM."""
    rng = np.random.default_rng([SEED, *name.encode()])
    layers = []
    for inputs, outputs in pairwise(widths):
        weight = rng.standard_normal((outputs, inputs)) * np.sqrt(2 / (inputs + outputs))
        bias = rng.standard_normal(outputs) * np.sqrt(1 / outputs)
        layers.append((weight.astype(np.float32), bias.astype(np.float32)))
    return layers


def cross_layers(config: Config) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of each cross layer V (rank, N), W (N, rank) and a bias (N,) that is not 0, for the test."""
    width, rank = config.crossed, config.cross_rank
    made = []
    for layer in range(config.cross_layers):
        (v, _), (w, bias) = linear_layers((width, rank, width), f"cross{layer}")
        made.append((v, w, bias))
    return made
