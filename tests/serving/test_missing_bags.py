# SPDX-License-Identifier: Apache-2.0
"""A missing bag is an empty one, whatever form a request gives it, alone and in company."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import sparsetrain as st
from sparsetrain.serving.column import DOUBLE, INT64, TEXT, Column, as_column
from sparsetrain.serving.export import export
from sparsetrain.serving.limits import Most
from sparsetrain.serving.model import Model
from sparsetrain.serving.requests import from_arrow, from_json
from tests.helpers import slow_except
from tests.serving import test_model_features as features
from tests.serving.logs import BAGS, frame, rows_of

MOST = Most(rows=100, values=100_000, bytes=1 << 20)

NUMBER, GONE, EDGES = np.zeros(1), np.ones(1, np.uint8), np.zeros(2, np.int64)
# The values of one row, as Python and as the library in C are given them.
FORMS = {
    "None": [None],
    "an empty list": [[]],
    "an empty text": [""],
    "an object of NumPy": np.array([None], object),
    "an integer in C": Column(INT64, NUMBER.view(np.int64), None, GONE),
    "a number in C": Column(DOUBLE, NUMBER, None, GONE),
    "an empty list in C": Column(DOUBLE, NUMBER, None, None, EDGES),
    "a text in C": Column(TEXT, GONE, EDGES, GONE),
}
TYPES = [pa.null(), pa.list_(pa.null()), pa.list_(pa.int64()), pa.int64(), pa.float64()]
ROW = {"age": [3], "user": [7], "taste": [[0.5, -1.0, 2.0]]}


def expected_of(trainer):
    return trainer.predict(frame(ROW | {"seen": [[]], "factor": [[]]}, BAGS))


@pytest.mark.parametrize("form", FORMS)
def test_a_missing_bag_and_its_weights_are_empty(exported, form):
    trainer, folder = exported["bags"]
    values = FORMS[form]
    columns = {name: as_column(value, name) for name, value in ROW.items()}
    for name, value in (("seen", values), ("factor", [None] if "text" in form else values)):
        columns[name] = value if isinstance(value, Column) else as_column(value, name)
    found = Model(folder).predict_columns(columns)
    np.testing.assert_array_equal(found, expected_of(trainer))


def test_absent_bags_and_vectors_are_empty_where_this_was_asked_for(exported):
    trainer, folder = exported["bags"]
    model = Model(folder, absent="null")
    gone = {
        "age": [None],
        "seen": [[]],
        "factor": [[]],
        "taste": pa.nulls(1, pa.list_(pa.float32(), 3)),
    }
    expected = trainer.predict(pa.table(gone | {"user": [7]}))
    np.testing.assert_array_equal(model.predict({"user": [7]}), expected)


@pytest.mark.parametrize("seen", TYPES, ids=str)
@pytest.mark.parametrize("factor", TYPES, ids=str)
def test_a_missing_bag_of_an_arrow_stream_is_empty(exported, seen, factor):
    trainer, folder = exported["bags"]
    table = pa.table(ROW | {"seen": pa.nulls(1, seen), "factor": pa.nulls(1, factor)})
    sink, model = pa.BufferOutputStream(), Model(folder)
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    columns = from_arrow(sink.getvalue().to_pybytes(), model.columns, MOST)
    np.testing.assert_array_equal(model.predict_columns(columns), expected_of(trainer))


def test_a_missing_bag_of_json_is_empty_alone_and_in_company(exported):
    trainer, folder = exported["bags"]
    model, columns = Model(folder), rows_of(9, 4)
    for row, empty in ((3, None), (5, [])):
        columns["seen"][row] = columns["factor"][row] = empty
    expected = trainer.predict(frame(columns, BAGS))
    rows = [{name: columns[name][row] for name in model.columns} for row in range(9)]
    for asked in (range(9), [3], [5], [3, 3]):
        body = json.dumps({"rows": [rows[row] for row in asked]}).encode()
        found = model.predict_columns(from_json(body, model.columns, MOST))
        np.testing.assert_array_equal(found, expected[[*asked]])


SEQUENCES = {"din": ["history"], "own": ["history", "rated", "stars"]}


@pytest.mark.parametrize("name", slow_except(["din"], SEQUENCES))
def test_a_missing_sequence_is_empty_alone_and_in_company(name, tmp_path):
    trainer = features.trainer_of(name)
    export(trainer, tmp_path / "out", cpu="native")
    model, columns = Model(tmp_path / "out"), features.rows_of(4, 5)
    columns["history"] = columns["rated"]
    for column in SEQUENCES[name]:
        columns[column] = [*columns[column][:2], None, []]
    expected = trainer.predict(frame(columns, trainer.encoder.schema))
    np.testing.assert_array_equal(model.predict(columns), expected)
    for row in range(4):
        one = {column: values[row : row + 1] for column, values in columns.items()}
        np.testing.assert_array_equal(model.predict(one), expected[row : row + 1])
    if name == "din":  # beside plain values, in each of which pandas sees a number
        same = columns | {"history": [[3], [], [4], [5]]}
        plain = columns | {"history": [3, None, 4, 5]}
        expected = trainer.predict(frame(same, trainer.encoder.schema))
        np.testing.assert_array_equal(model.predict(plain), expected)
        np.testing.assert_array_equal(trainer.predict(pd.DataFrame(plain)), expected)


def test_an_encoder_that_takes_nan_for_missing_takes_it_for_an_empty_bag(tmp_path):
    schema = st.data.Schema(label="click", dense=("age",), categories=("history",))
    data = frame(features.rows_of(99, 0), schema)
    encoder = st.data.Encoder.fit(data, schema=schema, min_count=1, nan="missing")
    arguments = {"num_dense": 1, "pooling": "sum", "names": encoder.columns}
    model = st.models.DLRM(encoder.rows, 4, (8,), (8,), **arguments)
    trainer = st.Trainer(model, st.optim.sgd(0.1), encoder=encoder)
    export(trainer, tmp_path / "out", cpu="native")
    expected = trainer.predict({"age": [1.0], "history": [[]]})
    for history in ([None], [float("nan")], np.array([np.nan])):
        columns = {"age": [1.0], "history": history}
        np.testing.assert_array_equal(Model(tmp_path / "out").predict(columns), expected)
        np.testing.assert_array_equal(trainer.predict(columns), expected)


def test_ids_and_weights_may_begin_at_different_places(exported):
    trainer, folder = exported["bags"]
    columns = {name: as_column(value, name) for name, value in ROW.items()}
    ids, weights = np.array([9, 9, 1, 2]), np.array([0.5, 4.0, 99.0])
    columns["seen"] = Column(INT64, ids, None, None, np.array([2, 4]))
    columns["factor"] = Column(DOUBLE, weights, None, None, np.array([0, 2]))
    expected = trainer.predict(frame(ROW | {"seen": [[1, 2]], "factor": [[0.5, 4.0]]}, BAGS))
    np.testing.assert_array_equal(Model(folder).predict_columns(columns), expected)
