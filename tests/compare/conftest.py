# SPDX-License-Identifier: Apache-2.0
"""Few steps and small plots: the tests do not judge how long anything takes."""

import pytest

from sparsetrain.compare import figures, measure


@pytest.fixture(autouse=True, scope="module")
def _small_comparisons():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "MOST_STEPS", 2 * measure.LEAST_STEPS)
        patch.setattr(figures, "_DPI", 50)
        yield
