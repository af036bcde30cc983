# SPDX-License-Identifier: Apache-2.0
"""Comparisons of few steps and small pictures: how large the figures are is not judged."""

import pytest

from sparsetrain.compare import figures, measure, roofs


@pytest.fixture(autouse=True, scope="module")
def _small_comparisons():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "MOST_STEPS", 2 * measure.LEAST_STEPS)
        patch.setattr(figures, "_DPI", 50)
        patch.setattr(roofs, "STREAM_BYTES", 2**24)
        yield
