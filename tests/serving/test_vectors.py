# SPDX-License-Identifier: Apache-2.0
"""Exported models read vectors as the encoder does: from lists, JSON and Arrow."""

import json

import numpy as np
import pyarrow as pa
import pytest

import sparsetrain as st
from sparsetrain.errors import DataError
from sparsetrain.serving.limits import Most
from sparsetrain.serving.model import Model
from sparsetrain.serving.requests import ARROW, JSON, READERS

WIDTH, COUNT = 3, 40
LAYOUTS = {
    "beside numbers": st.data.Schema("y", ("age",), ("user",), vectors={"e": WIDTH, "f": 1}),
    "alone": st.data.Schema("y", (), ("user",), vectors={"e": WIDTH}),
}


def rows_of(seed=0):
    rng = np.random.default_rng(seed)
    e = rng.normal(size=(COUNT, WIDTH)).tolist()
    e[3], e[7] = None, []
    return {
        "y": rng.integers(0, 2, COUNT).tolist(),
        "age": [None, *rng.integers(0, 90, COUNT - 1).tolist()],
        "user": rng.integers(0, 9, COUNT).tolist(),
        "e": e,
        "f": [[n] for n in range(COUNT)],
    }


@pytest.fixture(scope="module", params=LAYOUTS)
def exported(request, exporting):
    schema = LAYOUTS[request.param]
    encoder = st.data.Encoder.fit(
        rows_of(), schema=schema, min_count=1, missing_flags=bool(schema.dense)
    )
    model = st.models.DLRM(dim=4, bottom=(8,), top=(8,), **encoder.model_arguments)
    trainer = st.Trainer(model, st.optim.adagrad(0.1), encoder=encoder)
    return trainer, Model(exporting(trainer))


def test_they_are_the_numbers_that_the_trainer_reads(exported):
    trainer, model = exported
    rows = rows_of(1)
    expected = trainer.predict(rows)
    np.testing.assert_array_equal(model.predict(rows), expected)
    listed = [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
    sink, table = pa.BufferOutputStream(), pa.table(rows)
    fixed = pa.array([v or None for v in rows["e"]], pa.list_(pa.float32(), WIDTH))
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    bodies = {JSON: json.dumps({"rows": listed}).encode(), ARROW: sink.getvalue().to_pybytes()}
    for kind, body in bodies.items():
        columns = READERS[kind][0](body, model.columns, Most(COUNT, 10_000, 1 << 20))
        np.testing.assert_array_equal(model.predict_columns(columns), expected)
    halved = rows | {"e": fixed.to_pylist()}
    np.testing.assert_array_equal(
        model.predict(halved), trainer.predict(pa.table(rows | {"e": fixed}))
    )
    none = rows | {"e": [None] * COUNT}
    np.testing.assert_array_equal(model.predict(none), trainer.predict(none))


BAD = {
    "another length": ([1.0] * 2, "row 6, column e: it is no list of 3 numbers"),
    "nothing inside": ([1.0, None, 1.0], "row 6, column e: a number of the vector is missing"),
    "NaN": ([1.0, np.nan, 1.0], "row 6, column e: the value is NaN"),
    "too large": ([1e39] * 3, "row 6, column e: the value is too large for float32"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_such_vector_is_named(exported, case):
    value, message = BAD[case]
    rows = rows_of()
    rows["e"][6] = value
    with pytest.raises(DataError, match=message):
        exported[1].predict(rows)


@pytest.mark.parametrize("values", [[1.0] * COUNT, ["a"] * COUNT, [["a"] * 3] * COUNT])
def test_what_holds_no_lists_of_numbers_is_refused(exported, values):
    with pytest.raises(DataError, match=r"column e: it (is no list|holds text; give lists) of"):
        exported[1].predict(rows_of() | {"e": values})
