# SPDX-License-Identifier: Apache-2.0
"""What updates cost is measured as briefly as can be: it decides the path of an update, no bit.

A figure takes 0.3 seconds else, more on a busy machine, and a test session needs some hundred.
`optim/test_costs.py`, whose subject they are, measures as the package does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsetrain.optim.paths.costs import calibration, trial


def measure_briefly(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Measure no longer than needs be, from now on or until `replace` is undone."""
    replace(calibration, "MOST_ROUNDS", 2)
    replace(trial, "SECONDS", 0.0)  # a contest ends after its fewest rounds
