# SPDX-License-Identifier: Apache-2.0
"""Scale the planted effects until the data has the click rate and the ceiling that were asked for.

Both depend monotonically on the bias and on the scale, so two nested bisections find them. The
pilot logits are sorted once and averaged in groups, which makes a step cost 20 us.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sparsetrain.data.synthetic.ceiling import sigmoid, weighted_auc
from sparsetrain.errors import ConfigError

SHARES = np.array([0.35, 0.30, 0.35])  # of the logit's variance: integers, ids, pairs
_GROUPS = 4096
_MAX_SCALE = 64.0


class Calibration(NamedTuple):
    """`logit = bias + weights @ parts`."""

    bias: float
    weights: np.ndarray  # (3,) float64

    def logits(self, parts: np.ndarray) -> np.ndarray:
        """Return the true logits, float64 (n,), of `parts` (3, n)."""
        integers, ids, pairs = self.weights
        return self.bias + integers * parts[0] + ids * parts[1] + pairs * parts[2]


def calibrate(parts: np.ndarray, click_rate: float, bayes_auc: float) -> Calibration:
    """Find the bias and the scale at which the pilot rows have this click rate and ceiling.

    Parameters
    ----------
    parts : ndarray (3, n) float64
        Unscaled effects of pilot rows; n a multiple of 4096.
    click_rate, bayes_auc : float

    Raises
    ------
    ConfigError
        If no scale reaches `bayes_auc`.
    """
    weights = np.sqrt(SHARES) / parts.std(axis=1)
    z = np.sort(Calibration(0.0, weights).logits(parts)).reshape(_GROUPS, -1).mean(axis=1)

    def bias_at(scale: float) -> float:
        reach = 50.0 + scale * float(np.abs(z).max())
        return _bisect(lambda bias: sigmoid(bias + scale * z).mean() - click_rate, -reach, reach)

    def auc_at(scale: float) -> float:
        p = sigmoid(bias_at(scale) + scale * z)
        return weighted_auc(1.0 - p, p)

    scale = _bisect(lambda s: auc_at(s) - bayes_auc, 0.0, _MAX_SCALE)
    if abs(auc_at(scale) - bayes_auc) > 1e-4:
        raise ConfigError(f"no data with bayes_auc={bayes_auc} can be made: take one nearer to 0.8")
    return Calibration(bias_at(scale), scale * weights)


def _bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rising(middle) < 0.0 else (low, middle)
    return 0.5 * (low + high)
