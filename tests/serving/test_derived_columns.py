# SPDX-License-Identifier: Apache-2.0
"""Derived columns that the library in C takes: made for a request as for training, or given."""

import json

import numpy as np
import pyarrow as pa
import pytest

import sparsetrain as st
from sparsetrain.data.schema.derived import Derived
from sparsetrain.errors import DataError
from sparsetrain.serving.limits import Most
from sparsetrain.serving.model import Model
from sparsetrain.serving.requests import from_arrow, from_json

MOST = Most(rows=1000, values=100_000, bytes=1 << 20)
SCHEMA = st.data.Schema(
    "click",
    categories=("user", "genres_list", "price_bucket", "views_bucket", "pair", "hour"),
    derived={
        "genres_list": Derived("genres", separator="|"),
        "price_bucket": Derived("price", quantiles=4),
        "views_bucket": Derived("views", log=2),
        "pair": Derived("user", cross="site", buckets=50),
        "hour": Derived("time", divide=3600, modulo=24),
    },
)


def rows_of(count, seed):
    rng = np.random.default_rng(seed)
    genres = ["", "Drama", "Drama|Crime", "[Comedy | 'Crime']", None, "Comédie|Drama"]
    return {
        "click": rng.integers(0, 2, count).tolist(),
        "user": rng.integers(0, 9, count).tolist(),
        "site": [f"s{n}" for n in rng.integers(0, 5, count)],
        "genres": [genres[n] for n in rng.integers(0, len(genres), count)],
        "price": [None if n < 1 else n for n in rng.normal(5, 3, count).tolist()],
        "views": rng.integers(-5, 3000, count).tolist(),
        "time": rng.integers(0, 10**9, count).tolist(),
    }


@pytest.fixture(scope="module")
def made(exporting):
    rows = rows_of(200, 0)
    encoder = st.data.Encoder.fit(rows, schema=SCHEMA, min_count=1)
    model = st.models.DLRM(**encoder.model_arguments, dim=4, bottom=(), top=(4,))
    trainer = st.Trainer(model, st.optim.adagrad(0.1), encoder=encoder, target="cpu")
    trainer.fit(rows, epochs=2, batch_size=50, progress=None)
    return trainer, Model(exporting(trainer))


def test_a_request_with_the_sources_is_answered_as_by_the_trainer(made):
    trainer, model = made
    rows = rows_of(60, 1)
    expected = trainer.predict(rows)
    np.testing.assert_array_equal(model.predict(rows), expected)
    names = [*rows]
    records = [dict(zip(names, row, strict=True)) for row in zip(*rows.values(), strict=True)]
    body = json.dumps({"rows": records}).encode()
    by_json = model.predict_columns(from_json(body, model.columns, MOST))
    np.testing.assert_array_equal(by_json, expected)
    table, sink = pa.table(rows), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    arrow = from_arrow(sink.getvalue().to_pybytes(), model.columns, MOST)
    np.testing.assert_array_equal(model.predict_columns(arrow), expected)


def test_a_request_may_give_the_derived_column_itself(made):
    trainer, model = made
    rows = rows_of(1, 2) | {"genres": ["Drama|Crime"]}
    given = {name: values for name, values in rows.items() if name != "genres"}
    found = model.predict(given | {"genres_list": [["Drama", "Crime"]]})
    np.testing.assert_array_equal(found, trainer.predict(rows))


def test_a_time_may_be_text_as_the_trainer_reads_it(made):
    trainer, model = made
    rows = rows_of(3, 4) | {"time": ["2026-11-28", "2026-11-28T23:05:00+02:00", None]}
    np.testing.assert_array_equal(model.predict(rows), trainer.predict(rows))
    with pytest.raises(DataError, match="column time: 'noon' is not a time in ISO 8601"):
        model.predict(rows | {"time": ["2026-11-28", "noon", "2026-11-28"]})
    with pytest.raises(DataError, match="column time: hour is derived from it: give integers"):
        model.predict(rows | {"time": ["noon", "noon", "noon"]})


def test_sources_of_which_all_values_are_missing_are_read(made):
    trainer, model = made
    rows = rows_of(2, 5)
    for name in ("genres", "price", "views", "site", "time"):
        none = rows | {name: [None, None]}
        table = pa.table(rows).set_column([*rows].index(name), name, pa.nulls(2))
        np.testing.assert_array_equal(model.predict(none), trainer.predict(table))


def test_absent_columns_are_missing_values_where_this_was_asked_for(made):
    trainer, model = made
    lenient = Model(model.folder, absent="null")
    rows = rows_of(2, 6)
    none = {name: [None, None] for name in rows if name != "user"}
    expected = model.predict({**none, "user": rows["user"]})
    np.testing.assert_array_equal(lenient.predict({"user": rows["user"]}), expected)


def test_a_source_that_is_missing_or_bad_is_named(made):
    rows = rows_of(2, 3)
    lacking = {name: values for name, values in rows.items() if name != "genres"}
    with pytest.raises(DataError, match="column genres is missing: genres_list is derived from it"):
        made[1].predict(lacking)
    with pytest.raises(DataError, match="column price: 'x' is not a number"):
        made[1].predict(rows | {"price": ["1", "x"]})
