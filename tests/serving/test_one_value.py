# SPDX-License-Identifier: Apache-2.0
"""A value has one id in Python, in C and over HTTP, whatever type and form it is given in."""

import json
import warnings

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as hs

import sparsetrain as st
from sparsetrain.parsing.identity import KINDS
from sparsetrain.serving.limits import Most
from sparsetrain.serving.model import Model
from sparsetrain.serving.requests import ARROW, JSON, READERS
from tests.serving.attacks import stream

NUMBERS = [0, 1, 7, 12, -1, -3, 2**31, 2**32 - 1, -(2**31), 2**40, -(2**40), 2**53 - 1, 2**63 - 1]
WORDS = ["a", "é\0x", "012", "7.0", "true", "deadbeef", "x" * 300, "0000000c"]
SEEN = {
    "whole": [str(n) for n in NUMBERS],
    "hexadecimal": [f"{n % 2**32:08x}" for n in NUMBERS],
    "text": [*WORDS, *map(str, NUMBERS)],
}
MOST = Most(1000, 10_000, 1 << 20)


@pytest.fixture(scope="module", params=[False, True], ids=["single", "bags"])
def served(request, exporting):
    """A model that tells all ids of a column of each kind apart, and its folder."""
    rows = max(map(len, SEEN.values()))
    data = {kind: (values * rows)[:rows] for kind, values in SEEN.items()}
    if request.param:
        data["text"] = [[value] for value in data["text"]]
    schema = st.data.Schema("y", categories=KINDS)
    encoder = st.data.Encoder.fit(data | {"y": [0] * rows}, schema=schema, min_count=1)
    assert tuple(column.values.kind for column in encoder.features) == KINDS
    model = st.models.DLRM(dim=4, bottom=(4,), top=(8,), **encoder.model_arguments)
    trainer = st.Trainer(model, st.optim.sgd(0.1), encoder=encoder)
    return trainer, Model(exporting(trainer))


def padded(number):
    return hs.sampled_from([f"{number}", f"0{number}", f"{number}.0", f"{number:03}", f"+{number}"])


numbers = hs.sampled_from(NUMBERS) | hs.integers(-(2**63), 2**63 - 1)
texts = (
    hs.sampled_from(["", *WORDS, *SEEN["hexadecimal"], "True", "FALSE", "-0", "1.5"])
    | numbers.flatmap(padded)
    | numbers.map(lambda n: f"{n % 2**32:08x}")
    | hs.text(hs.characters(exclude_categories=["Cs"]), max_size=9)
)
FORMS = {
    **{f"int{bits}": bits for bits in (8, 16, 32, 64)},
    "float64": numbers.filter(lambda n: abs(n) < 2**53).map(float),
    "string": texts,
    "bool": hs.booleans(),
}


@hs.composite
def columns_of(draw):
    """A few rows of a column: its type, and values or None."""
    form = draw(hs.sampled_from([*FORMS]))
    values = FORMS[form]
    if isinstance(values, int):
        edge = 2 ** (values - 1)
        values = hs.sampled_from([n for n in NUMBERS if -edge <= n < edge])
        values |= hs.integers(-edge, edge - 1)
    return form, draw(hs.lists(values | hs.none(), min_size=3, max_size=3))


@settings(max_examples=200, deadline=None)
@given(drawn=hs.tuples(*(columns_of() for _ in KINDS)))
@example(
    drawn=[("string", ["012", "7.0", ""]), ("int32", [-1, -3, None]), ("bool", [True, False, None])]
)
@example(
    drawn=[("float64", [7.0, -1.0, None]), ("string", ["ffffffff", "", "1"]), ("int64", [7, 1, 2])]
)
def test_python_c_and_requests_give_the_same_predictions(served, drawn):
    trainer, model = served
    lists = {kind: values for kind, (_, values) in zip(KINDS, drawn, strict=True)}
    types = {"string": pa.string(), "bool": pa.bool_(), "float64": pa.float64()}
    arrays = {
        kind: pa.array(values, types.get(form) or getattr(pa, form)())
        for kind, (form, values) in zip(KINDS, drawn, strict=True)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns of another kind than in training
        expected = trainer.predict(pa.table(arrays))
        each = [trainer.predict(pa.table(arrays)[row : row + 1]) for row in range(3)]
    np.testing.assert_array_equal(np.concatenate(each), expected)
    np.testing.assert_array_equal(model.predict(lists), expected)
    for row in range(3):
        one = {kind: values[row : row + 1] for kind, values in lists.items()}
        np.testing.assert_array_equal(model.predict(one), expected[row : row + 1])
    whole = {k: a.to_numpy(zero_copy_only=False) for k, a in arrays.items() if not a.null_count}
    np.testing.assert_array_equal(model.predict(lists | whole), expected)
    rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    for kind, body in {JSON: json.dumps({"rows": rows}).encode(), ARROW: stream(arrays)}.items():
        columns = READERS[kind][0](body, model.columns, MOST)
        np.testing.assert_array_equal(model.predict_columns(columns), expected)
