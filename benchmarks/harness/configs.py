# SPDX-License-Identifier: Apache-2.0
"""Measured models, with their operations and bytes."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

# Rows of the 26 categorical columns. Criteo Kaggle as published; Criteo 1 TB as MLPerf trains it,
# before its tables are cut.
KAGGLE_ROWS = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
MLPERF_ROWS = (
    *(39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10),
    *(2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36),
)
MLPERF_LIMIT = 200_000


@dataclass(frozen=True)
class Config:
    """A DLRM: `bottom` and `top` are hidden widths, as `sparsetrain.models.DLRM` takes them.

    With `cross_layers` it has the cross interaction.
    """

    rows: tuple[int, ...]
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    num_dense: int = 13
    cross_layers: int = 0
    cross_rank: int = 0

    @property
    def features(self) -> int:
        return len(self.rows)

    @property
    def bottom_widths(self) -> tuple[int, ...]:
        return (self.num_dense, *self.bottom, self.dim)

    @property
    def crossed(self) -> int:
        """Numbers of a sample that cross layers multiply: the dense vector and all embeddings."""
        return (self.features + 1) * self.dim

    @property
    def top_widths(self) -> tuple[int, ...]:
        pairs = (self.features + 1) * self.features // 2
        return (self.crossed if self.cross_layers else pairs + self.dim, *self.top, 1)

    @property
    def interaction(self) -> dict[str, Any]:
        """Keyword arguments of `sparsetrain.models.DLRM`."""
        if not self.cross_layers:
            return {}
        numbers = {"cross_layers": self.cross_layers, "cross_rank": self.cross_rank}
        return {"interaction": "cross", **numbers}

    def matmul_flops(self, batch: int) -> int:
        """Operations of all layers' products in a step: forward, weights' and inputs' gradients.

        The first layer needs no gradient of its input.
        """
        layers = [
            a * b for widths in (self.bottom_widths, self.top_widths) for a, b in pairwise(widths)
        ]
        layers += [2 * self.crossed * self.cross_rank] * self.cross_layers
        return 2 * batch * (3 * sum(layers) - layers[0])

    def table_bytes(self) -> int:
        """Bytes of the tables in float32."""
        return sum(self.rows) * self.dim * 4


_KAGGLE = Config(KAGGLE_ROWS, 16, (512, 256, 64), (512, 256))
_MLPERF = Config(
    tuple(min(rows, MLPERF_LIMIT) for rows in MLPERF_ROWS), 128, (512, 256), (1024, 1024, 512, 256)
)
CONFIGS = {
    "kaggle": _KAGGLE,
    "kaggle_dcnv2": replace(_KAGGLE, cross_layers=3, cross_rank=64),
    "mlperf": _MLPERF,
    "mlperf_dcnv2": replace(_MLPERF, cross_layers=3, cross_rank=512),
    "small": Config((1000,) * 26, 16, (64,), (64,)),
    "small_dcnv2": Config((1000,) * 26, 16, (64,), (64,), cross_layers=2, cross_rank=16),
}

LEARNING_RATES = {"sgd": 0.1, "adagrad": 0.02, "rowwise_adagrad": 0.02}
EPSILON = 1e-8  # of both Adagrads, given to every library
