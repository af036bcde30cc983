# SPDX-License-Identifier: Apache-2.0
"""Dense columns of kinds of their own, by the keys of a schema that name them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder, Schema, convert_files
from sparsetrain.data.schema.schema import DENSE_KINDS
from sparsetrain.errors import ConfigError

# Key -> option, values of a column, and its inputs (rows, inputs).
MADE = {
    "vectors": (2, [[0.5, -1.0], None, [2.0, 3.0]], [[0.5, -1.0], [0.0, 0.0], [2.0, 3.0]]),
}


def test_every_kind_has_inputs():
    assert {kind.key for kind in DENSE_KINDS} ^ {*MADE} == set()


@pytest.mark.parametrize("key", MADE)
def test_a_column_has_these_inputs_in_every_form_of_data(key, tmp_path):
    option, values, inputs = MADE[key]
    wanted = np.hstack([np.log([[4.0], [5.0], [6.0]]), inputs]).astype(np.float32)
    rows = {"y": [0, 1, 0], "n": [1, 2, 3], "x": values, "site": ["a", "b", "a"]}
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table(rows), file)
    (tmp_path / "schema.toml").write_text(
        Schema("y", ("n",), ("site",), **{key: {"x": option}}).to_toml()
    )
    encoder = Encoder.fit(file, schema=tmp_path / "schema.toml", min_count=1)
    again = Encoder.from_state(*encoder.to_state())
    assert again.num_dense == wanted.shape[1] and encoder.schema.wanted >= {"x"}
    convert_files(file, tmp_path / "out", encoder=again)
    for form in (rows, pa.table(rows).to_pylist(), pa.table(rows), file, tmp_path / "out"):
        (batch,) = Dataset(form, again).batches(3)
        np.testing.assert_allclose(batch.dense, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("key", MADE)
def test_a_column_that_is_something_else_too_is_refused(key):
    option = MADE[key][0]
    with pytest.raises(ConfigError, match=f"{key}: 'n' is named as another column too; drop one"):
        Schema("y", ("n",), ("site",), **{key: {"n": option}})
    with pytest.raises(ConfigError, match=f"{key} is given without categories; name both"):
        Schema("y", **{key: {"x": option}})
