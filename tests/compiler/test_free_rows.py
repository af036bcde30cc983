# SPDX-License-Identifier: Apache-2.0
"""A program serves tables of any size, so data of other sizes compile nothing."""

import numpy as np
import pandas as pd
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

import sparsetrain as st
from sparsetrain.compiler import program
from sparsetrain.compiler.free_rows import with_free_rows
from sparsetrain.errors import DataError
from tests import small_dlrm
from tests.helpers import slow_except
from tests.models import test_field_models as fields
from tests.models import test_named_features as named

SIZES = [50, 20, 7], [31, 90, 8]
OPTIMIZERS = {
    "sgd": lambda: st.optim.sgd(0.1),
    "adagrad": lambda: st.optim.adagrad(0.1),
    "adam": lambda: st.optim.adam(0.01),
    "adam, lazy": lambda: st.optim.adam(0.01, mode="lazy"),
    "adam, exact": lambda: st.optim.adam(0.01, mode="exact"),
    "adam, dense": lambda: st.optim.adam(0.01, mode="dense"),
    "adam, lazy, but for one table": lambda: st.optim.adam(
        0.01, mode="lazy", groups=[st.optim.ParamGroup("embeddings.C3.weight", mode="dense")]
    ),
}


@pytest.fixture
def compiled(place, monkeypatch):
    """What was compiled."""
    calls = []
    for owner, name in ((program, "compile_relax"), (tvm, "compile")):
        compile_ = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *a, c=compile_, **k: calls.append(a[0]) or c(*a, **k)
        )
    return calls


def train_on(rows: list[int], model: st.models.ClickModel, optimizer, kind: str = "single") -> None:
    trainer = st.Trainer(model, optimizer, target="cpu")
    batches = [small_dlrm.batch(16, number, kind, rows=rows) for number in range(2)]
    trainer.fit(batches, validation=batches, progress=None)
    assert np.isfinite(trainer.predict(batches)).all()


def assert_second_compiles_nothing(compiled, train) -> None:
    train(0)
    first = len(compiled)
    train(1)
    assert len(compiled) == first > 0


@pytest.mark.parametrize(
    "optimizer", slow_except(("adam, exact", "adam, lazy, but for one table"), OPTIMIZERS)
)
def test_tables_of_other_sizes_compile_nothing_by_any_optimizer(optimizer, compiled):
    def train(second):
        rows = SIZES[second]
        model = st.models.DLRM(rows=rows, dim=8, bottom=(16,), top=(16,), num_dense=13)
        train_on(rows, model, OPTIMIZERS[optimizer]())

    assert_second_compiles_nothing(compiled, train)


@pytest.mark.parametrize("kind", slow_except(("bfloat16",), ("bfloat16", "mean", "weighted")))
def test_tables_of_other_sizes_compile_nothing_in_any_form(kind, compiled):
    def train(second):
        rows = SIZES[second]
        model = st.models.DLRM(
            rows=rows, dim=8, top=(16,), bottom=(16,), num_dense=13, **small_dlrm.KINDS[kind]
        )
        train_on(rows, model, st.optim.adagrad(0.1), kind)

    assert_second_compiles_nothing(compiled, train)


@pytest.mark.parametrize("name", slow_except(("dcnv2",), fields.CASES))
def test_tables_of_other_sizes_compile_nothing_for_any_model(name, compiled):
    def train(second):
        train_on(SIZES[second], fields.made(name, SIZES[second]), st.optim.adam(0.01))

    assert_second_compiles_nothing(compiled, train)


DENSE = (st.models.BERT4Rec, st.models.TwoTowers)  # products of the whole table of items


@pytest.mark.parametrize(
    "cls",
    slow_except((st.models.DIN, st.models.SASRec), [m for m in named.MODELS if m not in DENSE]),
)
def test_an_encoder_of_other_rows_compiles_nothing(cls, compiled):
    frames = named.frame(), fewer_values(named.frame())

    def train(second):
        rows = frames[second]
        trainer = named.trainer_for(cls, rows)
        trainer.fit(rows, batch_size=16, validation=rows, progress=None)
        run = trainer.predict if trainer.model.all_labels else trainer.recommend
        run(rows.head(8))

    assert_second_compiles_nothing(compiled, train)


def fewer_values(rows: pd.DataFrame) -> pd.DataFrame:
    items = rows["history"].map(lambda ids: [item % 17 for item in ids])
    return rows.assign(history=items, item=rows["item"] % 19, user=rows["user"] % 11)


@I.ir_module
class Lookups:
    """A table that is looked up, one that is multiplied too, one that is not used, a weight."""

    @R.function
    def main(
        ids: R.Tensor(("B",), "int32"),
        table: R.Tensor((50, 4), "float32"),
        tied: R.Tensor((20, 4), "float32"),
        unused: R.Tensor((7, 4), "float32"),
        weight: R.Tensor((4, 4), "float32"),
    ) -> R.Tensor(("B", 20), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            rows = R.take(table, ids, axis=0, mode="fast")
            more = R.take(tied, ids, axis=0, mode="fast")
            both = R.matmul(R.add(rows, more), weight)
            scores = R.matmul(both, R.permute_dims(tied))
            R.output(scores)
        return scores


def test_only_tables_that_are_looked_up_alone_have_any_number_of_rows():
    from sparsetrain.embedding.take import take_as_lookup

    freed = with_free_rows(take_as_lookup(Lookups), "main")["main"]
    rows = {param.name: param.ty.shape[0] for param in freed.params}
    assert {name for name, count in rows.items() if isinstance(count, tvm.tirx.Var)} == {
        "ids",
        "table",
        "unused",
    }


def test_arguments_are_checked_by_the_rows_that_a_model_has():
    made = st.Program(Lookups, "main", "cpu")
    tables = {"table": 50, "tied": 20, "unused": 7, "weight": 4}
    params = {name: np.zeros((rows, 4), "f4") for name, rows in tables.items()}
    with pytest.raises(DataError, match="id 20 at .* outside the table's 20 rows"):
        made(params, {"ids": np.array([3, 20], "i4")})
    with pytest.raises(DataError, match="'table' must have shape"):
        made(params | {"table": np.zeros((51, 4), "f4")}, {"ids": np.array([3], "i4")})
