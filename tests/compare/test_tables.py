# SPDX-License-Identifier: Apache-2.0
"""The user's own tables: a case for each column, with the ids of the file."""

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.compare import Case, measure, tables_of_data
from sparsetrain.errors import DataError


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "rows.parquet"
    st.data.SyntheticCriteo(0, max_cardinality=300).write(path, 1500)
    return path


def test_there_is_a_case_for_each_column_with_the_ids_of_the_file(file):
    encoder = st.data.Encoder.fit(file)
    tables = tables_of_data(str(file), Case(1, width=8, formula="adagrad"), 64)
    *own, together = [case for case, _ in tables]
    cases = {case.label: case for case in own}
    assert list(cases) == list(encoder.columns)
    assert [case.rows for case in own] == encoder.rows
    assert (together.rows, together.lookups) == (sum(encoder.rows), 64 * len(own))
    assert {(c.width, c.formula, c.lookups) for c in own} == {(8, "adagrad", 64)}
    (first, *_) = st.data.Dataset(file, encoder).batches(64)
    for n, (_, ids) in enumerate(tables[:-1]):
        np.testing.assert_array_equal(ids[0], first.ids[:, n])


@pytest.mark.slow
def test_they_are_measured_as_given(file):
    tables = tables_of_data(str(file), Case(1, width=8), 64)
    for case, ids in tables[-2:]:
        assert measure("sparse", case, ids).steps >= 10


def test_too_few_rows_are_refused_with_the_way_out(file):
    with pytest.raises(DataError, match="smaller batch size"):
        tables_of_data(str(file), Case(1), 1000)
