# SPDX-License-Identifier: Apache-2.0
"""Exports of models that take their features apart: attention, retrieval, one's own."""

import numpy as np
import pytest
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.models import Dense, Ids, Sequence
from sparsetrain.serving.delta import apply, write_delta
from sparsetrain.serving.export import export
from sparsetrain.serving.model import Model
from sparsetrain.serving.onnx_model import export_onnx
from tests.serving.logs import frame

HISTORY = {"history": st.data.ColumnRule(share_embedding="item", max_length=9, keep="first")}
PLAIN = st.data.Schema(
    label="click", dense=("age",), categories=("user", "item", "history"), columns=HISTORY
)
WEIGHTED = st.data.Schema(
    label="click",
    dense=("age", "price"),
    categories=("user", "item", "history", "rated"),
    columns={**HISTORY, "rated": st.data.ColumnRule(share_embedding="item", weights="stars")},
)


def rows_of(rows, seed):
    rng = np.random.default_rng(seed)
    bags = [rng.integers(0, 25, rng.integers(0, 14)).tolist() for _ in range(rows)]
    return {
        "age": rng.uniform(0, 9, rows).tolist(),
        "price": [None if rng.random() < 0.2 else float(x) for x in rng.uniform(0, 9, rows)],
        "user": [f"u{n}" for n in rng.integers(0, 30, rows)],
        "item": rng.integers(0, 25, rows).tolist(),
        "history": bags,
        "rated": [bag[:9] for bag in bags],
        "stars": [[1.0 + n / 8 for n in bag[:9]] for bag in bags],
        "click": rng.integers(0, 2, rows).tolist(),
    }


class Rated(st.models.Model):
    """A model with every kind of feature."""

    def __init__(self, users, items, many=False):
        super().__init__()
        self.user, self.item = st.embedding.Embedding(users, 4), st.embedding.Embedding(items, 4)
        self.last = nn.Linear(13, 1)
        self.features = {
            "user": Ids("user"),
            "rated": Sequence("item", 5, weighted=True),
            "history": Sequence("item", 5, weighted=True, like="rated"),
            "numbers": Dense(1, columns=("price",)),
        }
        if many:
            self.features["others"] = Dense(1, columns=("age",))
        self.labels = {"click": "binary"}

    def forward(self, user, rated, history, numbers, **others):
        both = [self.item.pool(rated, "sum"), self.item(history).mean()]
        return self.last(nn.op.concat([self.user(user), *both, numbers], dim=1))


def schema_of(name):
    return WEIGHTED if name in ("own", "two Dense") else PLAIN


def trainer_of(name):
    """One with fresh weights, which compiles no training step."""
    schema = schema_of(name)
    data = frame(rows_of(300, 0), schema)
    encoder = st.data.Encoder.fit(data, schema=schema, min_count=2)
    rows = dict(zip(encoder.columns, encoder.rows, strict=True))
    makers = {
        "din": lambda: st.models.DIN(rows, 4, (4,), (4,), length=5, label="click"),
        "two towers": lambda: st.models.TwoTowers(rows, 4, (4,)),
        "sasrec": lambda: st.models.SASRec(rows, 4, blocks=1, length=5),
        "own": lambda: Rated(rows["user"], rows["item"]),
        "bert4rec": lambda: st.models.BERT4Rec(rows, 4, blocks=1, heads=1, length=5),
        "two Dense": lambda: Rated(rows["user"], rows["item"], many=True),
    }
    return st.Trainer(makers[name](), st.optim.sgd(0.1), encoder=encoder)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """A function: name -> a trainer and its folder, made once."""
    made = {}

    def one(name):
        if name not in made:
            trainer = trainer_of(name)
            folder = tmp_path_factory.mktemp("models") / "folder"
            export(trainer, folder, cpu="native")
            made[name] = trainer, folder
        return made[name]

    return one


NAMES = ["din", *(pytest.param(n, marks=pytest.mark.slow) for n in ("own", "sasrec", "two towers"))]


@pytest.mark.parametrize("name", NAMES)
def test_answers_equal_those_of_the_trainer_to_the_bit(exports, name):
    trainer, folder = exports(name)
    model = Model(folder)
    columns = rows_of(5000, 1)
    if name == "own":
        columns["history"] = columns["rated"]
    data = frame(columns, schema_of(name))
    has_labels = bool(trainer.model.all_labels)
    expected = trainer.predict(data) if has_labels else trainer.query_vectors(data)
    np.testing.assert_array_equal(model.predict(columns), expected)
    one = {column: values[:1] for column, values in columns.items()}
    np.testing.assert_array_equal(model.predict(one), expected[:1])
    if not has_labels:
        np.testing.assert_array_equal(model.items, trainer.item_vectors())
        assert "item" not in model.columns


def test_a_delta_of_tables_with_a_file_each_holds_the_rows_that_changed(exports, tmp_path):
    trainer, folder = exports("din")
    users, before = trainer.table("user"), trainer.table("user")
    users[2:4] += 1
    trainer.load_table("user", users)
    export(trainer, tmp_path / "newer", cpu="native")
    trainer.load_table("user", before)
    write_delta(folder, tmp_path / "newer", tmp_path / "delta")
    changed = [np.load(path).tolist() for path in (tmp_path / "delta").glob("*.rows.npy")]
    assert changed == [[2, 3]]
    apply(folder, tmp_path / "delta", tmp_path / "made")
    for path in (tmp_path / "newer").iterdir():
        assert (tmp_path / "made" / path.name).read_bytes() == path.read_bytes()


def test_a_request_with_other_numbers_of_ids_is_refused_by_row_and_column(exports):
    columns = rows_of(3, 2) | {"rated": [[1], [2], [3, 4]], "stars": [[1.0], [1.0], [1.0, 1.0]]}
    with pytest.raises(DataError, match="row 2, column history: it has more or fewer ids"):
        Model(exports("own")[1]).predict(columns | {"history": [[1], [2], [3]]})
    with pytest.raises(DataError, match="column user: it holds lists"):
        Model(exports("own")[1]).predict(columns | {"user": [["a"], ["b"], ["c"]]})


REFUSED = {
    "bert4rec": "BERT4Rec.prepare_scores is Python code, which an export cannot run",
    "two Dense": "Rated has several Dense features, numbers, others",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_export_runs_is_refused_by_name(name, tmp_path):
    with pytest.raises(ConfigError, match=REFUSED[name]):
        export(trainer_of(name), tmp_path / "out", cpu="native")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["din", "two towers"])
def test_no_such_model_is_onnx(exports, name, tmp_path):
    pytest.importorskip("onnx")
    with pytest.raises(ConfigError, match=r"ONNX: .*(reads|has no)"):
        export_onnx(exports(name)[0], tmp_path / "model.onnx")
