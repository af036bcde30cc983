# SPDX-License-Identifier: Apache-2.0
"""The code of docs/serving.md and docs/recipes.md runs and does what is said beside it."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sparsetrain as st

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def clicks(rows: int, items: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    made = pd.DataFrame(
        {
            "user": rng.integers(0, 40, rows),
            "item": [f"i{number}" for number in rng.integers(0, items, rows)],
            "price": rng.gamma(2.0, 5.0, rows).round(2),
        }
    )
    return made.assign(click=(rng.random(rows) < 0.1 + 0.8 * (made["price"] > 9)).astype(int))


@pytest.fixture(scope="module")
def log() -> dict:
    """A trained model, what it was trained on, and newer rows with new items."""
    train, schema = clicks(1_000, 20, 0), st.data.Schema("click", ("price",), ("user", "item"))
    encoder = st.data.Encoder.fit(train, schema_file=schema, min_count=2)
    sizes = {"rows": encoder.rows, "names": encoder.columns, "num_dense": 1, "dim": 4}
    sizes |= {"bottom": (8,), "top": (8,)}
    trainer = st.Trainer(st.models.DLRM(**sizes), st.optim.adagrad(0.05), encoder=encoder)
    trainer.fit(train, epochs=12, progress=None)
    names = {"st": st, "np": np, "pd": pd, "trainer": trainer, "sizes": sizes, "train": train}
    more = {"encoder": encoder, "valid": clicks(300, 20, 1), "test": clicks(300, 20, 2)}
    return {**names, **more, "day4": clicks(600, 30, 3)}


def test_serving_and_newer_data(log, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    log["trainer"].save("monday")
    requests = log["valid"].drop(columns="click").to_dict("records")
    names = {**log, "requests": requests, "warm_up": requests[:1]}
    serve, extend = blocks("serving.md")
    exec(serve, names)
    expected = log["trainer"].predict(log["valid"])
    np.testing.assert_array_equal(names["probabilities"], expected)
    exec(extend, names)
    assert names["trainer"].encoder.rows[1] == log["encoder"].rows[1] + 10
    assert st.load("tuesday").encoder.rows == names["encoder"].rows


def test_recipes(log, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    out, near, load, frozen, seen, compare, importance = blocks("recipes.md")
    names = dict(log)
    exec(out, names)
    stored = pd.read_parquet("items.parquet")
    assert sorted(stored["item"]) == sorted(f"i{number}" for number in range(20))
    exec(near, names)
    assert names["near"][0] == 0
    fresh = st.Trainer(st.models.DLRM(**log["sizes"]), st.optim.sgd(0.1), encoder=log["encoder"])
    names |= {"fresh": fresh, "pretrained": {"i3": np.full(4, 0.5)}}
    exec(load, names)
    row = log["encoder"].values("item").index("i3")
    np.testing.assert_array_equal(fresh.table("item")[row], 0.5)
    exec(frozen, names)
    assert [group.lr for group in names["optimizer"].groups] == [0, 0.05]
    bags = [[f"i{row % 20}", f"i{row % 7}"] for row in range(len(log["train"]))]
    names["visits"] = log["train"].assign(seen=bags)
    exec(seen, names)
    tables = [names["one_table"].table(column) for column in ("item", "seen")]
    np.testing.assert_array_equal(*tables)
    assert len(tables[0]) == 22
    exec(compare, names)
    assert len(names["scores"]) == 12
    capsys.readouterr()
    exec(importance, names)
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(lines["price"]) > max(float(lines["user"]), float(lines["item"]))
