# SPDX-License-Identifier: Apache-2.0
"""Widths and poolings of features in a model's whole life: saved, grown, exported, on a command."""

import json

import numpy as np
import pandas as pd
import pytest

import sparsetrain as st
from sparsetrain.cli import main
from sparsetrain.errors import ConfigError
from sparsetrain.serving.export import export
from sparsetrain.serving.libraries import compiler
from sparsetrain.serving.model import Model
from sparsetrain.sklearn import ClickClassifier
from tests.helpers import slow_except

OPTIONS = {"dim": {"item": 24, "shop": 4}, "pooling": {"tags": "mean"}}
SCHEMA = st.data.Schema("click", ("price",), ("user", "item", "tags", "shop"))


def rows_of(count: int, values: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    sizes = {"user": values, "item": values // 2, "shop": 9}
    made = pd.DataFrame({name: rng.integers(0, size, count) for name, size in sizes.items()})
    tags = [rng.integers(0, 10, rng.integers(0, 4)) for _ in range(count)]
    clicks = (rng.random(count) < 0.2 + 0.6 * (made["item"] % 2)).astype(int)
    return made.assign(tags=tags, price=rng.gamma(2.0, 5.0, count).round(2), click=clicks)


def without_lists(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.drop(columns="tags")


ROWS = rows_of(300, 40)
NAMES = ("dlrm", "widedeep", "deepfm")


@pytest.fixture(scope="module", params=slow_except(NAMES[:2], NAMES))
def trainer(request) -> st.Trainer:
    encoder = st.data.Encoder.fit(ROWS, schema=SCHEMA, min_count=1)
    model = st.models.MODELS[request.param].for_encoder(encoder, **OPTIONS)
    trainer = st.Trainer(model, st.optim.adagrad(0.1), encoder=encoder)
    trainer.fit(ROWS, batch_size=30, epochs=5, progress=None)
    return trainer


def test_it_learns_and_is_saved(trainer, tmp_path):
    assert trainer.evaluate(ROWS)["auc"] > 0.75
    trainer.save(tmp_path / "saved")
    loaded = st.load(tmp_path / "saved")
    assert loaded.model.config() == trainer.model.config()
    assert loaded.predict(ROWS).tobytes() == trainer.predict(ROWS).tobytes()
    item = loaded.state_dict()["embeddings.item.weight"]
    assert item.shape[1] == 24 + trainer.model.num_weights


def test_it_grows(trainer):
    newer = rows_of(100, 60, seed=1)
    grown = trainer.extended(trainer.encoder.extended(newer))
    assert grown.model.widths == trainer.model.widths
    assert grown.predict(ROWS).tobytes() == trainer.predict(ROWS).tobytes()
    grown.fit(newer, batch_size=30, epochs=1, progress=None)


def test_it_is_quantized(trainer):
    np.testing.assert_allclose(trainer.quantized().predict(ROWS), trainer.predict(ROWS), atol=0.03)


@pytest.mark.parametrize("count", [1, 64, 300])
def test_an_export_gives_its_predictions(trainer, count, exported):
    rows = ROWS[:count]
    lists = {"tags": [tags.tolist() for tags in rows["tags"]]}
    columns = {n: rows[n].to_numpy() for n in rows if n not in ("tags", "click")}
    found = exported(trainer).predict({**columns, **lists})
    np.testing.assert_allclose(found, trainer.predict(rows), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    try:
        compiler()
    except ConfigError as error:
        pytest.skip(str(error))
    made: dict[int, Model] = {}

    def of(trainer) -> Model:
        if id(trainer) not in made:
            folder = tmp_path_factory.mktemp("export") / "model"
            export(trainer, folder)
            made[id(trainer)] = Model(folder)
        return made[id(trainer)]

    return of


def test_an_export_of_single_ids_gives_its_predictions(exported):
    rows = without_lists(ROWS)
    schema = st.data.Schema("click", ("price",), ("user", "item", "shop"))
    encoder = st.data.Encoder.fit(rows, schema=schema, min_count=1)
    model = st.models.DCN.for_encoder(encoder, dim=OPTIONS["dim"])
    trainer = st.Trainer(model, encoder=encoder)
    columns = {n: rows[n].to_numpy() for n in rows if n != "click"}
    found = exported(trainer).predict(columns)
    np.testing.assert_allclose(found, trainer.predict(rows), rtol=1e-5, atol=1e-6)


def test_an_estimator_takes_them():
    options = {"pooling": OPTIONS["pooling"], "hidden": [8]}
    made = ClickClassifier("deepfm", dim=OPTIONS["dim"], model_options=options, epochs=1)
    made.fit(ROWS.drop(columns="click"), ROWS["click"])
    assert made.trainer_.model.config()["dim"] == {"*": 16, **OPTIONS["dim"]}
    assert made.trainer_.model.config()["pooling"] == {"*": "sum", "tags": "mean"}


def test_a_command_takes_them(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ROWS.to_parquet("rows.parquet")
    train = ["train", "rows.parquet", "--label", "click", "--set"]
    pooling = ["--set", 'model.pooling = {tags = "mean"}']
    assert main([*train, 'model.dim={item = 24, "*" = 8}', *pooling, "--out", "run"]) == 0
    config = st.load("run").model.config()
    assert config["dim"] == {"*": 8, "item": 24}
    assert config["pooling"] == {"*": "sum", "tags": "mean"}
    saved = json.loads(json.dumps(config))
    assert st.models.DLRM(**saved).config() == config
    for dim, said in {
        "{items = 24}": "dim: there is no feature 'items'; did you mean 'item'?",
        "{item = 0}": "model.dim of 'item' = 0 must be greater than or equal to 1",
        "0": "model.dim = 0 must be greater than or equal to 1",
    }.items():
        assert main([*train, f"model.dim={dim}", "--out", "other"]) == 2
        assert said in capsys.readouterr().err
