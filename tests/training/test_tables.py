# SPDX-License-Identifier: Apache-2.0
"""Embedding tables by their column: read with the values of their rows, and written."""

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.errors import ConfigError
from tests import small_dlrm

DTYPES = {"single": "float32", "bfloat16": "bfloat16", "float16": "float16", "int8": "int8"}
CLOSE = {"single": {"rtol": 1e-6}, "bfloat16": {"rtol": 4e-3}, "int8": {"atol": 1 / 127}}
KINDS = {kind: {"table_dtype": dtype} for kind, dtype in DTYPES.items()}


@pytest.fixture(scope="module")
def trained():
    made = small_dlrm.trainer(optimizer=st.optim.adam(0.01, mode="exact"), encoder=encoder())
    made.fit(small_dlrm.raw_rows(100), batch_size=16, progress=None)
    return made


def encoder():
    return small_dlrm.encoder()


def test_a_row_of_a_table_is_the_embedding_of_the_value_beside_it(trained):
    values, table = trained.encoder.values("C2"), trained.table("C2")
    assert (len(values), table.shape, table.dtype) == (20, (20, 8), np.float32)
    assert values[:2] == [None, None]
    rows = {**small_dlrm.raw_rows(18), "C2": [f"{value:08x}" for value in values[2:]]}
    assert trained.encoder.encode(rows).ids[:, 1].tolist() == list(range(2, 20))
    np.testing.assert_array_equal(table, trained.state_dict()["embeddings.C2.weight"])


def test_values_are_numbers_or_texts_and_none_where_several_share_a_row():
    schema = st.data.Schema("y", (), ("item",))
    items = ["b", "b", "b", 'ä"', 'ä"', "c", "d", "e", "f"]
    rows = {"y": [0] * len(items), "item": items}
    fit = st.data.Encoder.fit
    assert fit(rows, schema=schema, min_count=2).values("item") == [None, None, "b", 'ä"']
    shared = fit(rows, schema=schema, min_count=1, max_rows=5)
    assert shared.values("item") == [None, None, "b", 'ä"', None]
    plain = fit({"y": [0], "item": [3]}, schema=schema, treat_as="encoded")
    with pytest.raises(ConfigError, match="item: .* already encoded data, so the values"):
        plain.values("item")
    with pytest.raises(ConfigError, match="no category column 'itm'; there are item"):
        shared.values("itm")


@pytest.mark.parametrize("kind", ["single", "bfloat16", "int8"])
def test_a_table_that_is_written_is_read_and_stays_if_its_rate_is_0(kind):
    frozen = st.optim.ParamGroup("embeddings.C2.*", lr=0)
    make = st.optim.rowwise_adagrad if kind == "int8" else st.optim.adam
    made = small_dlrm.trainer(kind, make(0.01, groups=[frozen]), encoder=encoder())
    before = made.table("C1")
    table = np.linspace(-1, 1, 160).reshape(20, 8)
    made.load_table("C2", table)
    np.testing.assert_allclose(made.table("C2"), table, **CLOSE[kind])
    kept = made.table("C2")
    made.fit(small_dlrm.raw_rows(100), batch_size=16, progress=None)
    np.testing.assert_array_equal(made.table("C2"), kept)
    assert (made.table("C1") != before).any()


def test_what_is_no_table_is_refused_and_nothing_is_written(trained):
    before = trained.state_dict()
    for table, error in (
        (np.zeros((20, 7), np.float32), r"C2 is \(20, 8\) floats, not \(20, 7\) float32"),
        (np.zeros((20, 8), int), r"C2 is \(20, 8\) floats, not \(20, 8\) int64"),
        (np.full((20, 8), np.nan), "C2 has numbers that are not finite"),
    ):
        with pytest.raises(ConfigError, match=error):
            trained.load_table("C2", table)
    with pytest.raises(ConfigError, match="no table 'item'; tables are C1, C2, C3"):
        trained.table("item")
    small_dlrm.assert_same_state(trained.state_dict(), before)


@pytest.mark.parametrize(
    ("kind", "large"), [("single", 1e300), ("float16", 1e5), ("int8", 3.39e38)]
)
def test_what_is_too_large_for_a_table_is_refused(kind, large):
    made = st.Trainer(st.models.DLRM([5], dim=4, num_dense=13, **KINDS[kind]), st.optim.sgd(0.1))
    before = made.table("C1")
    with pytest.raises(ConfigError, match=f"C1 has numbers that are not finite in {DTYPES[kind]}"):
        made.load_table("C1", np.full((5, 4), large))
    np.testing.assert_array_equal(made.table("C1"), before)


@pytest.mark.parametrize("kind", KINDS)
def test_the_array_of_a_state_is_a_table(kind):
    made, other = (
        st.Trainer(
            st.models.DLRM([5], dim=4, num_dense=13, **KINDS[kind]), st.optim.sgd(0.1), seed=seed
        )
        for seed in (0, 1)
    )
    made.load_table("C1", other.state_dict()["embeddings.C1.weight"])
    np.testing.assert_array_equal(made.table("C1"), other.table("C1"))


def test_the_log_has_the_learning_rate_of_each_line(tmp_path):
    rate = 0.1 * st.optim.step_decay(7, 0.5)
    made = small_dlrm.trainer(optimizer=st.optim.sgd(rate), encoder=encoder())
    run = st.Run(tmp_path / "run", log_every=2)
    made.fit(small_dlrm.raw_rows(160), batch_size=16, progress=None, run=run)
    lines = [line for line in run.log() if line["split"] == "train"]
    assert [line["lr"] for line in lines] == [rate(line["step"]) for line in lines]
    assert len({line["lr"] for line in lines}) == 2
