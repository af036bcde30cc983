# SPDX-License-Identifier: Apache-2.0
"""A short run of `under_attack`, with all attacks at once."""

import pytest

for needed in ("starlette", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(needed)
from tests.serving import under_attack  # noqa: E402
from tests.serving.attacks import ATTACKS  # noqa: E402


def test_limits_and_answers_hold_under_all_attacks_at_once(exported):
    attacks = under_attack.run([[*ATTACKS]], exported["ids"], seconds=1, timeout=2, share=0.05)
    assert [wrong for _, wrong in attacks] == [[]]
