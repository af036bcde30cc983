# SPDX-License-Identifier: Apache-2.0
"""The page for people from other libraries: its code runs."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()


@pytest.fixture
def clicks(tmp_path, monkeypatch) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    made = pd.DataFrame(
        {
            "user": rng.integers(0, 40, 2_000).astype(str),
            "item": rng.integers(0, 30, 2_000),
            "price": rng.gamma(2.0, 5.0, 2_000).round(2),
            "age": rng.integers(18, 80, 2_000),
        }
    )
    made["clicked"] = (rng.random(2_000) < 0.1 + 0.02 * made["item"]).astype(int)
    made.to_csv(tmp_path / "clicks.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return made


def test_the_code_of_the_page_runs(clicks, capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    names: dict = {}
    exec(blocks[0], names)
    assert names["history"]["checkpoint"] == "best" and names["scored"]["p"].between(0, 1).all()
    whole = names["encoder"].encode(clicks)
    cuts = [slice(at, at + 500) for at in range(0, 2_000, 500)]
    names["loader"] = [(whole.dense[cut], whole.ids[cut], whole.labels[cut]) for cut in cuts]
    steps = names["trainer"].steps
    exec(blocks[1], names)
    assert names["trainer"].steps == steps + 8
    exec(blocks[2], names)
    assert names["trainer"].steps == steps + 8 + 8
