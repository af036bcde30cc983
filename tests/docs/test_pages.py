# SPDX-License-Identifier: Apache-2.0
"""The code of four pages runs and does what is said there."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sparsetrain as st

DOCS = Path(__file__).parents[2] / "docs"


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
    exec(compare.replace("range(3)", "range(1)"), names)
    assert len(names["scores"]) == 4
    capsys.readouterr()
    exec(importance, names)
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(lines["price"]) > max(float(lines["user"]), float(lines["item"]))


def test_coming_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = clicks(2_000, 30, 0).rename(columns={"click": "clicked"})
    age = np.random.default_rng(1).integers(18, 80, 2_000)
    rows.assign(age=age).to_csv("clicks.csv", index=False)
    names: dict = {}
    fit, loader, loop = blocks("coming-from.md")
    exec(fit, names)
    assert names["history"]["checkpoint"] == "best" and names["scored"]["p"].between(0, 1).all()
    whole = names["encoder"].encode(pd.read_csv("clicks.csv"))
    cuts = [slice(at, at + 500) for at in range(0, 2_000, 500)]
    names["loader"] = [(whole.dense[cut], whole.ids[cut], whole.labels[cut]) for cut in cuts]
    steps = names["trainer"].steps
    exec(loader, names)
    assert names["trainer"].steps == steps + 8
    exec(loop, names)
    assert names["trainer"].steps == steps + 8 + 8


def visit(rng: np.random.Generator, rows: int) -> dict:
    """Rows of a world in which a user likes the items of one remainder by 4."""
    user, lengths = rng.integers(0, 60, rows), rng.integers(0, 5, rows)
    item = (user % 4 + 4 * rng.integers(0, 10, rows)).astype("int64")
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    recent = np.repeat(user % 4, lengths) + 4 * rng.integers(0, 10, offsets[-1])
    log_q = np.full(rows, np.log(1 / 40), "float32")
    return {"user": user, "item": item, "log_q": log_q, "recent": recent, "offsets": offsets}


def ranked(rng: np.random.Generator, rows: int) -> dict:
    length, seen = rng.integers(0, 21, rows), rng.integers(0, 40, (rows, 20))
    item = rng.integers(0, 40, rows)
    clicked = (item % 4 == 0).astype("float32")
    names = {"user": rng.integers(0, 60, rows), "item": item, "seen": seen, "length": length}
    return {**names, "clicked": clicked, "bought": clicked * (item < 20)}


def ranked_loss(params: dict, batch: dict) -> float:
    """The sum of the two tasks' losses in float64, by NumPy."""
    w = {name: p.numpy().astype("float64") for name, p in params.items()}

    def mlp(name, x):
        hidden = np.maximum(x @ w[f"{name}.layers.0.weight"].T + w[f"{name}.layers.0.bias"], 0)
        return hidden @ w[f"{name}.layers.1.weight"].T + w[f"{name}.layers.1.bias"]

    wanted, rows = w["item.weight"][batch["item"]], w["item.weight"][batch["seen"]]
    one = np.broadcast_to(wanted[:, None], rows.shape)
    scores = mlp("relevance", np.concatenate([rows, one, rows - one, rows * one], 2))[..., 0]
    scores[np.arange(20) >= batch["length"][:, None]] = -1e9
    shares = np.exp(scores - scores.max(1, keepdims=True))
    interest = np.einsum("bl,bld->bd", shares / shares.sum(1, keepdims=True), rows)
    x = np.concatenate([w["user.weight"][batch["user"]], wanted, interest], 1)
    click = (mlp("click", x) + w["wide.weight"][batch["item"]])[:, 0]
    p = 1 / (1 + np.exp(-click))
    both = p / (1 + np.exp(-mlp("buy", x)[:, 0]))
    pairs = ((batch["clicked"], p), (batch["bought"], both))
    return -sum((y * np.log(q) + (1 - y) * np.log(1 - q)).mean() for y, q in pairs)


def test_more_models():
    start, towers, ranker, loop = blocks("more-models.md")
    rng = np.random.default_rng(0)
    names = {"visits": [visit(rng, 64) for _ in range(60)], "held_out": visit(rng, 200)}
    exec(start, names)
    exec(towers, names)
    assert names["vectors"].shape == (40, 8)
    assert names["recall_at_10"] > 0.7  # by chance 0.25
    exec(ranker, names)
    days = [[ranked(rng, 32) for _ in range(20)] for _ in range(2)]
    first = names["fresh"](names["named"], seed=0)
    names["days"] = days
    exec(loop, names)
    (loss, clicks, buys), _ = names["program"](first, days[0][0])
    np.testing.assert_allclose(float(loss.numpy()), ranked_loss(first, days[0][0]), rtol=1e-6)
    np.testing.assert_allclose(
        float(loss.numpy()), float(clicks.numpy()) + float(buys.numpy()), rtol=1e-6
    )
    after = ranked_loss(names["params"], days[1][0])
    assert after < 0.7 * ranked_loss(first, days[1][0])
    frozen = [params["user.weight"].numpy() for params in (first, names["params"])]
    np.testing.assert_array_equal(*frozen)
