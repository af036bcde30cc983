# SPDX-License-Identifier: Apache-2.0
"""The code of four pages runs and does what is said there."""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sparsetrain as st
from sparsetrain.serving.export import export

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
    encoder = st.data.Encoder.fit(train, schema=schema, min_count=2)
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
    serve, exported, extend = blocks("serving.md")
    exec(serve, names)
    export("monday", "served", cpu="native")
    exec(exported, names)
    expected = log["trainer"].predict(log["valid"])
    np.testing.assert_array_equal(names["probabilities"], expected)
    exec(extend, names)
    assert names["trainer"].encoder.rows[1] == log["encoder"].rows[1] + 10
    assert st.load("tuesday").encoder.rows == names["encoder"].rows


def test_recipes(log, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    out, near, indexed, load, frozen, *_, importance = blocks("recipes.md")
    names = dict(log)
    exec(out, names)
    stored = pd.read_parquet("items.parquet")
    assert sorted(stored["item"]) == sorted(f"i{number}" for number in range(20))
    exec(near, names)
    assert names["near"][0] == 0
    if find_spec("hnswlib"):
        exec(indexed, names)
        assert names["recall"] > 0.9
    fresh = st.Trainer(st.models.DLRM(**log["sizes"]), st.optim.sgd(0.1), encoder=log["encoder"])
    names |= {"fresh": fresh, "pretrained": {"i3": np.full(4, 0.5)}}
    exec(load, names)
    row = log["encoder"].values("item").index("i3")
    np.testing.assert_array_equal(fresh.table("item")[row], 0.5)
    exec(frozen, names)
    assert [group.lr for group in names["optimizer"].groups] == [0, 0.05]
    capsys.readouterr()
    exec(importance, names)
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(lines["price"]) > max(float(lines["user"]), float(lines["item"]))


@pytest.mark.slow
def test_recipes_that_train_further_models(log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *_, seen, compare, _ = blocks("recipes.md")
    names = dict(log)
    bags = [[f"i{row % 20}", f"i{row % 7}"] for row in range(len(log["train"]))]
    names["visits"] = log["train"].assign(seen=bags)
    exec(seen, names)
    tables = [names["one_table"].table(column) for column in ("item", "seen")]
    np.testing.assert_array_equal(*tables)
    assert len(tables[0]) == 22
    exec(compare.replace("range(3)", "range(1)"), names)
    assert len(names["scores"]) == 4


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


def visits(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Rows of a world in which a user likes the items of one remainder by 4."""
    user = rng.integers(0, 60, rows)
    item = user % 4 + 4 * rng.integers(0, 10, rows)
    history = [(u % 4 + 4 * rng.integers(0, 10, rng.integers(0, 5))).tolist() for u in user]
    clicked = (item % 8 < 4).astype(int)
    frame = {"user": user, "item": item, "history": history, "clicked": clicked}
    return pd.DataFrame({**frame, "bought": clicked * (item < 20)})


@pytest.fixture
def visited(tmp_path, monkeypatch) -> dict:
    """Names of the page on more models, in a folder with a log of ratings."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = {"visits": visits(rng, 1500), "held_out": visits(rng, 100)}
    names["visits"][["user", "item"]].to_csv("ratings.csv", index=False)
    return names


def test_more_models(visited):
    towers, log, own = (block.partition("trainer.fit(")[0] for block in blocks("more-models.md"))
    exec(towers, visited)
    encoder = visited["encoder"]
    exec(own, visited)
    schema = replace(encoder.schema, labels={"clicked": "binary", "bought": "binary"})
    encoder = st.data.Encoder.fit(visited["visits"], schema=schema, min_count=1)
    model = visited["ESMM"](encoder.rows[0], encoder.rows[1])
    trainer = st.Trainer(model, st.optim.adam(0.02), encoder=encoder)
    trainer.fit(visited["visits"], epochs=10, batch_size=64, progress=None)
    assert trainer.evaluate(visited["held_out"])["clicked.auc"] > 0.9
    exec(log, visited)
    assert isinstance(visited["trainer"].model, st.models.SASRec)


@pytest.mark.slow
def test_more_models_that_rank(visited):
    towers, log, _ = blocks("more-models.md")
    exec(towers, visited)
    assert visited["scores"]["ndcg@10"] > 0.35  # by chance 0.11
    assert len(visited["names"]) == 3
    exec(log.replace("epochs=50", "epochs=1"), visited)
    assert visited["trainer"].evaluate(visited["split"].test)["users"] > 50
