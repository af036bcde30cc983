# SPDX-License-Identifier: Apache-2.0
"""Features that look up one table: one storage, one slot, one coalesced row, one name."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import sparsetrain as st
from sparsetrain import runtime
from sparsetrain.errors import ConfigError
from sparsetrain.optim import ParamGroup
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.targets import resolve_target
from tests.helpers import slow_except
from tests.shared_tables import KINDS, NAMES, ROWS, SHARE, WIDTH, Reference, batch, log, model
from tests.small_dlrm import assert_same_state

STORAGE = f"embeddings.width{WIDTH}.weight"


def trainer(kind="single", optimizer=None, **options) -> st.Trainer:
    return st.Trainer(model(kind), optimizer or st.optim.adagrad(0.1), seed=1, **options)


def trained(*given, steps=4, kind="single", **options) -> st.Trainer:
    made = trainer(kind, *given, **options)
    for seed in range(steps):
        made.step(batch(50, seed, kind))
    return made


@pytest.mark.parametrize("kind", slow_except(["single", "mean", "weighted"], KINDS))
def test_training_is_that_of_a_float64_model_with_a_table_that_is_one(kind):
    made = trainer(kind)
    reference = Reference({name: made.table(name) for name in ROWS}, 0.1, kind == "mean")
    for seed in range(4):
        made.step(batch(50, seed, kind))
        reference.step(batch(50, seed, kind))
        for name, expected in reference.tables.items():
            np.testing.assert_allclose(made.table(name), expected, rtol=2e-4, atol=2e-5)


@I.ir_module
class Pairs:
    """The model of `tests.shared_tables` for one id of each feature, as TVM's own pass takes it."""

    @R.function
    def loss(
        labels: R.Tensor((40,), "float32"),
        user: R.Tensor((40,), "int32"),
        history: R.Tensor((40,), "int32"),
        item: R.Tensor((40,), "int32"),
        users: R.Tensor((9, 4), "float32"),
        items: R.Tensor((12, 4), "float32"),
    ) -> R.Tensor((), "float32"):
        with R.dataflow():
            u = R.take(users, user, axis=0)
            h = R.take(items, history, axis=0)
            i = R.take(items, item, axis=0)
            z = R.sum(R.add(R.multiply(u, R.add(h, i)), R.multiply(h, i)), axis=[1])
            each = R.subtract(R.log(R.add(R.exp(z), R.const(1, "float32"))), R.multiply(labels, z))
            s = R.mean(each)
            R.output(s)
        return s


def test_the_gradient_is_that_of_tvms_own_pass():
    given, made = batch(40, 0), model()
    params = made.initialize(0)
    program = st.value_and_grad(made.export(), "loss", [STORAGE])
    gradient = program(params, made.inputs(given))[1][STORAGE]
    assert isinstance(gradient, st.RowSparse)
    assert gradient.indices.shape == (3 * 40,)  # and nothing of the table's shape
    table = runtime.as_numpy(params[STORAGE])
    rows = made.tables()[STORAGE]
    tables = [table[rows[name]] for name in ("user", "item")]
    arrays = [given.labels, *given.ids.T.astype("int32"), *tables]
    wanted = [p for p in Pairs["loss"].params if p.name in ("users", "items")]
    adjoint = relax.transform.Gradient("loss", require_grads=wanted)(Pairs)
    machine = build_relax(adjoint, resolve_target("llvm"))
    outputs = machine["loss_adjoint"](*(runtime.as_tensor(np.array(a)) for a in arrays))
    dense = gradient.to_dense().numpy()
    for name, expected in zip(("user", "item"), outputs[1], strict=True):
        np.testing.assert_allclose(dense[rows[name]], expected.numpy(), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["single", "weighted"])
def test_what_a_row_gets_is_added_in_the_order_in_which_its_ids_lie(kind):
    given, made = batch(300, 0, kind), model(kind)
    inputs = made.inputs(given)
    program = st.value_and_grad(made.export(), "loss", [STORAGE])
    gradient = program(made.initialize(0), inputs)[1][STORAGE]
    rows, values = inputs["rows"].ravel(), runtime.as_numpy(gradient.values)
    source = np.arange(len(rows)) if gradient.source is None else gradient.source.numpy()
    total = np.zeros((21, WIDTH), np.float32)
    for entry, row in enumerate(rows):
        total[row] += values[source[entry]]
    np.testing.assert_array_equal(gradient.to_dense().numpy(), total)


def test_columns_that_share_are_one_table_with_one_slot():
    made = trained()
    assert made.model.tables() == {STORAGE: {"user": slice(0, 9), "item": slice(9, 21)}}
    assert made.params[STORAGE].shape == (21, WIDTH)
    assert [list(slots) for slots in made.state.values()] == [["sum"]]
    assert list(made.state_dict()) == [
        "embeddings.user.weight",
        "embeddings.item.weight",
        "embeddings.user.weight:sum",
        "embeddings.item.weight:sum",
    ]


@pytest.mark.parametrize(
    ("make", "kind"),
    slow_except(
        [(st.optim.adagrad, "single"), (st.optim.adamw, "weighted")],
        product((st.optim.adagrad, st.optim.adam, st.optim.adamw, st.optim.ftrl), KINDS),
    ),
)
def test_every_way_to_update_gives_the_same_bits(make, kind):
    arms = [
        trained(make(0.1, mode="exact" if make is not st.optim.adagrad else "lazy"), kind=kind),
        trained(make(0.1, mode="dense"), kind=kind),
        trained(make(0.1, mode="exact", update="sparse"), kind=kind),
    ]
    states = [
        {n: a for n, a in one.state_dict().items() if not n.endswith(":last")} for one in arms
    ]
    for state in states[1:]:
        assert_same_state(state, states[0])


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}], ids=str)
def test_both_paths_give_the_same_bits(options):
    found = [
        trained(st.optim.adagrad(0.1, update=update), **options).state_dict()
        for update in ("sparse", "dense")
    ]
    assert_same_state(found[1], found[0])


@pytest.mark.slow
def test_one_and_two_threads_give_the_same_bits():
    result = subprocess.run(
        [sys.executable, "-m", "tests.shared_tables", "1", "2"],
        env=os.environ | {"TVM_NUM_THREADS": "2", "TVM_THREAD_POOL_SPIN_COUNT": "0"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    used, digests = zip(*(line.split() for line in result.stdout.splitlines()), strict=True)
    assert used == ("1", "2") and len(set(digests)) == 1


def test_the_table_is_read_written_and_grouped_by_its_name():
    optimizer = st.optim.adagrad(0.1, groups=[ParamGroup("embeddings.item.*", lr=0)])
    made = trainer("single", optimizer)
    rows = np.random.default_rng(0).normal(size=(12, WIDTH)).astype(np.float32)
    made.load_table("history", rows)
    for seed in range(3):
        made.step(batch(50, seed))
    for name in ("item", "history"):
        np.testing.assert_array_equal(made.table(name), rows)
    with pytest.raises(ConfigError, match="there is no table 'histories'; tables are user, item"):
        made.table("histories")


def test_a_checkpoint_goes_on_as_if_never_saved(tmp_path):
    made = trained(st.optim.adam(0.1, mode="exact"), kind="mean")
    made.save(tmp_path / "run")
    loaded = st.load(tmp_path / "run", model=type(made.model))
    assert loaded.model.config()["share_embedding"] == SHARE
    for seed in range(4, 7):
        made.step(batch(50, seed, "mean"))
        loaded.step(batch(50, seed, "mean"))
    assert_same_state(loaded.state_dict(), made.state_dict())


WRONG = {
    "an unknown name": ({"history": "itme"}, "no category 'itme'; did you mean 'item'"),
    "other rows": (
        {"history": "user"},
        "history has 12 rows, but shares the table of user, which has 9",
    ),
    "a chain": (
        {"user": "history", "history": "item"},
        "'history' itself shares the table of 'item'",
    ),
    "no mapping": ("item", "share_embedding is 'item'; give a dict of names to names"),
}


@pytest.mark.parametrize("share, message", WRONG.values(), ids=WRONG.keys())
def test_what_a_model_cannot_share_is_refused(share, message):
    with pytest.raises(ConfigError, match=message):
        model(share_embedding=share)


def test_names_that_are_there_twice_cannot_say_what_is_shared():
    with pytest.raises(ConfigError, match="names has 'history' twice"):
        model(names=["item", "history", "history"])


def test_a_model_without_shared_tables_is_as_ever():
    alone = model(share_embedding=None)
    assert alone.config()["share_embedding"] is None
    assert model(share_embedding={}).config() == alone.config()
    assert list(alone.tables()[STORAGE]) == ["user", "history", "item"]
    assert [alone.table_of(name) for name in NAMES] == [
        f"embeddings.{name}.weight" for name in NAMES
    ]


SCHEMA = st.data.Schema(
    "click",
    categories=tuple(NAMES),
    columns={"history": st.data.ColumnRule(share_embedding="item")},
)


def fitted(optimizer=None, **given) -> st.Trainer:
    encoder = st.data.Encoder.fit(log(), schema=SCHEMA, min_count=1)
    share = given.pop("share_embedding", encoder.share_embedding)
    options = {"num_dense": 0, "names": encoder.columns, "pooling": "sum", "dim": WIDTH}
    made = st.models.DLRM(encoder.rows, **options, bottom=(4,), top=(8,), share_embedding=share)
    trainer = st.Trainer(made, optimizer or st.optim.adagrad(0.1), encoder=encoder, seed=0)
    trainer.fit(log(), batch_size=50, epochs=2, progress=None)
    return trainer


def test_extending_gives_new_rows_to_the_one_table_and_changes_no_score():
    known, newer = fitted(st.optim.adam(0.01, mode="exact")), log(items=15, seed=1)
    scores, before = known.predict(newer), known.table("item")
    grown = known.extended(known.encoder.extended(newer))
    assert grown.encoder.rows == [9, 17, 17]
    assert grown.predict(newer).tobytes() == scores.tobytes()
    np.testing.assert_array_equal(grown.table("history")[:12], before)
    np.testing.assert_array_equal(grown.table("item")[12:], np.tile(before[1], (5, 1)))
    grown.fit(newer, batch_size=50, progress=None)
    assert grown.table("item")[12:].std(axis=0).min() > 0


def test_a_saved_run_scores_raw_rows_and_so_does_its_int8_form(tmp_path):
    made, newer = fitted(), log(seed=2)
    made.save(tmp_path / "run")
    scores = made.predict(newer)
    assert st.load(tmp_path / "run").predict(newer).tobytes() == scores.tobytes()
    quantized = made.quantized()
    assert quantized.table_bytes == (9 + 12) * (WIDTH + 8)
    quantized.save(tmp_path / "int8")
    found = st.load_predictor(tmp_path / "int8").predict(newer)
    np.testing.assert_allclose(found, scores, atol=0.02)


def test_a_model_and_its_encoder_share_the_same():
    with pytest.raises(ConfigError, match="history has a table of its own, but in the encoder it"):
        fitted(share_embedding=None)


def test_ids_that_are_encoded_already_need_no_schema():
    rows = pd.DataFrame({"label": [0, 1], "I1": [0.5, 1.0], "C1": [0, 4], "C2": [3, 1]})
    encoder = st.data.Encoder.fit(rows, sizes=[5, 5])
    options = {
        "num_dense": 1,
        "dim": 4,
        "bottom": (4,),
        "top": (4,),
        "share_embedding": {"C2": "C1"},
    }
    made = st.Trainer(st.models.DLRM(encoder.rows, **options), st.optim.sgd(0.1), encoder=encoder)
    assert made.table("C2").shape == (5, 4)
    raw = st.data.Encoder.fit(rows.astype({"I1": int}), min_count=1)
    assert raw.rows == [4, 4]
    with pytest.raises(
        ConfigError, match="C2 shares the table of C1, but in the encoder it has a table"
    ):
        st.Trainer(st.models.DLRM(raw.rows, **options), st.optim.sgd(0.1), encoder=raw)
