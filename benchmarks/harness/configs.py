# SPDX-License-Identifier: Apache-2.0
"""The models that are measured, and what they cost in operations and bytes."""

from dataclasses import dataclass
from itertools import pairwise

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
    """A DLRM: `bottom` and `top` are hidden widths, as `sparsetrain.models.DLRM` takes them."""

    rows: tuple[int, ...]
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    num_dense: int = 13

    @property
    def features(self) -> int:
        return len(self.rows)

    @property
    def bottom_widths(self) -> tuple[int, ...]:
        return (self.num_dense, *self.bottom, self.dim)

    @property
    def top_widths(self) -> tuple[int, ...]:
        vectors = self.features + 1
        return (vectors * (vectors - 1) // 2 + self.dim, *self.top, 1)

    def matmul_flops(self, batch: int) -> int:
        """Operations of the MLPs' products in a step: forward, weights' and inputs' gradients.

        The first layer needs no gradient of its input.
        """
        layers = [
            a * b for widths in (self.bottom_widths, self.top_widths) for a, b in pairwise(widths)
        ]
        return 2 * batch * (3 * sum(layers) - layers[0])

    def table_bytes(self) -> int:
        """Bytes of the tables in float32."""
        return sum(self.rows) * self.dim * 4


CONFIGS = {
    "kaggle": Config(KAGGLE_ROWS, 16, (512, 256, 64), (512, 256)),
    "mlperf": Config(
        tuple(min(rows, MLPERF_LIMIT) for rows in MLPERF_ROWS),
        128,
        (512, 256),
        (1024, 1024, 512, 256),
    ),
    "small": Config((1000,) * 26, 16, (64,), (64,)),
}

LEARNING_RATES = {"sgd": 0.1, "adagrad": 0.02, "rowwise_adagrad": 0.02}
EPSILON = 1e-8  # of both Adagrads, given to every library
