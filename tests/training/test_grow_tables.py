# SPDX-License-Identifier: Apache-2.0
"""A trainer that is extended: nothing that was learnt changes, and new values have rows."""

import numpy as np
import pytest
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain.errors import ConfigError
from sparsetrain.tables.growth import copy_grown_
from tests import small_dlrm
from tests.helpers import slow_except

OPTIMIZERS = {
    "adagrad": lambda: st.optim.adagrad(0.05, initial=0.1),
    "adam, exact": lambda: st.optim.adam(0.01, mode="exact"),
    "adamw, exact": lambda: st.optim.adamw(0.01, mode="exact"),
    "ftrl": lambda: st.optim.ftrl(0.05, groups=[st.optim.ParamGroup("embeddings.C2*", lr=0.01)]),
}
SECOND = {"C1": 50, "C2": 20}  # values that there are none of before


def newer(size: int = 100) -> dict:
    """Rows half of whose values in some columns are new."""
    columns = small_dlrm.raw_rows(size, seed=1)
    for name, first in SECOND.items():
        columns[name] = [
            text if row % 2 else f"{first + row % 16 // 2:08x}"
            for row, text in enumerate(columns[name])
        ]
    return columns


def fit(trainer: st.Trainer, rows: dict, **options) -> dict:
    return trainer.fit(rows, batch_size=16, progress=None, **options)


def trained(optimizer) -> st.Trainer:
    made = small_dlrm.trainer(optimizer=optimizer, encoder=small_dlrm.encoder(), seed=3)
    fit(made, small_dlrm.raw_rows(100))
    return made


@pytest.mark.parametrize("optimizer", slow_except(["adamw, exact"], OPTIMIZERS))
def test_extending_changes_no_score_and_keeps_rows_and_slots(optimizer):
    known = trained(OPTIMIZERS[optimizer]())
    rows = newer()
    before, scores = known.state_dict(), known.predict(rows)
    grown = known.extended(known.encoder.extended(rows, min_count=1))
    assert grown.encoder.rows == [58, 28, 7]
    assert (grown.steps, grown.epochs, grown.seed) == (known.steps, 0, known.seed)
    assert grown.predict(rows).tobytes() == scores.tobytes()
    after = grown.state_dict()
    assert after.keys() == before.keys()
    for name, array in before.items():
        assert after[name][: len(array)].tobytes() == array.tobytes(), name
    fresh = small_dlrm.trainer(optimizer=OPTIMIZERS[optimizer]()).state_dict()
    for name in (name for name in after if name.startswith("embeddings.C1.weight:")):
        new = after[name][50:]
        want = grown.steps if name.endswith(":last") and "adamw" in optimizer else fresh[name][0]
        np.testing.assert_array_equal(new, np.broadcast_to(want, new.shape), name)


@pytest.mark.parametrize(
    "make", slow_except([st.optim.adamw], [st.optim.adam, st.optim.adamw, st.optim.ftrl])
)
def test_exact_mode_goes_on_with_the_bits_of_the_dense_optimizer(make):
    states = []
    for mode in ("exact", "dense"):
        known = trained(make(0.01, mode=mode))
        grown = known.extended(known.encoder.extended(newer(), min_count=1))
        fit(grown, newer(), epochs=2)
        states.append(grown.state_dict())
    exact, dense = states
    for name, array in dense.items():
        assert exact[name].tobytes() == array.tobytes(), name


def test_an_extended_trainer_is_saved_and_resumed_as_a_run_of_its_own(tmp_path):
    known = trained(st.optim.adam(0.01))
    encoder = known.encoder.extended(newer(), min_count=1)
    whole = known.extended(encoder)
    fit(whole, newer(), epochs=2, run=tmp_path / "whole")
    fit(known.extended(encoder), newer(), epochs=1, run=tmp_path / "half")
    half = st.load(tmp_path / "half")
    fit(half, newer(), epochs=2, run=tmp_path / "half", resume=True)
    small_dlrm.assert_same_state(half.state_dict(), whole.state_dict())
    assert whole.state_dict()["embeddings.C1.weight"].shape == (58, 8)


def test_new_rows_of_encoded_data_begin_as_those_of_a_fresh_table():
    rows = {"label": [0, 1], "int_0": [0.5, 1.0], "cat_0": [3, 1]}
    encoder = st.data.Encoder.fit(rows)
    sizes = {"num_dense": 1, "dim": 4, "bottom": (4,), "top": (4,)}
    known = st.Trainer(st.models.DLRM(encoder.rows, **sizes), st.optim.sgd(0.1), encoder=encoder)
    grown = known.extended(encoder.extended({**rows, "cat_0": [6, 0]}))
    fresh = st.models.DLRM([7], **sizes).initialize(0)["embeddings.width4.weight"].numpy()
    np.testing.assert_array_equal(grown.state_dict()["embeddings.C1.weight"][4:], fresh[4:])


def test_a_column_whose_name_has_a_colon_grows_as_any_other():
    first, newer = ({"y": [0, 1, 0], "user:id": users} for users in ([7, 7, 5], [9, 9, 8]))
    schema = st.data.Schema("y", (), ("user:id",))
    encoder = st.data.Encoder.fit(first, schema=schema, min_count=1)
    sizes = {"num_dense": 0, "dim": 4, "bottom": (4,), "top": (4,), "names": encoder.columns}
    model = st.models.DLRM(encoder.rows, **sizes)
    known = st.Trainer(model, st.optim.adagrad(0.1), encoder=encoder)
    grown = known.extended(encoder.extended(newer))
    assert grown.predict(newer).tobytes() == known.predict(newer).tobytes()
    slots = grown.state_dict()["embeddings.user:id.weight:sum"]
    assert (slots.shape, slots.any()) == ((6, 4), False)


def test_an_encoder_that_gives_known_values_other_rows_is_refused():
    known = trained(st.optim.sgd(0.1))
    with pytest.raises(ConfigError, match="known values new rows.*trainer.encoder.extended"):
        known.extended(st.data.Encoder.fit(newer(), min_count=1))
    with pytest.raises(ConfigError, match="encoder is .*; give trainer.encoder.extended"):
        known.extended("newer.parquet")
    with pytest.raises(ConfigError, match="the trainer has no encoder"):
        small_dlrm.trainer().extended(known.encoder)


@pytest.mark.parametrize("shape", [(1, 85), (85,), (85, 77)])
def test_other_parameters_that_depend_on_the_rows_are_refused(shape):
    source = {"first.weight": np.zeros((1, 77), np.float32)}
    with pytest.raises(ConfigError, match=r"'first.weight'.*\(1, 77\)"):
        copy_grown_({"first.weight": np.zeros(shape, np.float32)}, source, [], {}, 0)


class Fixed(st.models.Model):
    """A model none of whose arguments decides the rows of its tables."""

    def __init__(self, dim=4):
        super().__init__()
        self.user = st.embedding.Embedding(50, dim)
        self.features = {"user": st.models.Ids("user")}
        self.labels = {"label": "binary"}

    def forward(self, user):
        return nn.op.sum(self.user(user), axis=1, keepdims=True)


def test_a_model_whose_arguments_do_not_decide_its_rows_is_refused():
    rows = {"user": [1, 2] * 20, "label": [0, 1] * 20}
    schema = st.data.Schema(categories=("user",))
    encoder = st.data.Encoder.fit(rows, schema=schema, min_count=1, treat_as="raw")
    trainer = st.Trainer(Fixed(), encoder=encoder)
    with pytest.raises(
        ConfigError, match="no argument of Fixed sets the number of rows of its tables"
    ):
        trainer.extended(encoder.extended({**rows, "user": [1, 3] * 20}))
