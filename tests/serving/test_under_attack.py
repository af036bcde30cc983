# SPDX-License-Identifier: Apache-2.0
"""A short run of `under_attack`, with some attacks at once, and with all."""

import pytest

for needed in ("starlette", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(needed)
from tests.helpers import slow_except  # noqa: E402
from tests.serving import under_attack  # noqa: E402
from tests.serving.attacks import ATTACKS  # noqa: E402

SOME = ["JSON bombs", "half a body", "pipelines"]


@pytest.mark.parametrize("names", slow_except([SOME], [SOME, [*ATTACKS]]), ids=len)
def test_limits_and_answers_hold_under_attacks_at_once(exported, names):
    attacks = under_attack.run([names], exported["ids"], seconds=1, timeout=2, share=0.05)
    assert [wrong for _, wrong in attacks] == [[]]
