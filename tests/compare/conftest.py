# SPDX-License-Identifier: Apache-2.0
"""Few steps: the tests do not judge how long anything takes."""

import pytest

from sparsetrain.compare import measuring


@pytest.fixture(autouse=True, scope="module")
def _small_comparisons():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "MOST_STEPS", 2 * measuring.LEAST_STEPS)
        yield
