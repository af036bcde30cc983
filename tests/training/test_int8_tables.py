# SPDX-License-Identifier: Apache-2.0
"""Models whose tables train in int8: state, growth, files, and what is refused."""

import numpy as np
import pytest
import tvm
from tvm import relax

import sparsetrain as st
from sparsetrain.embedding import lookup
from sparsetrain.errors import ConfigError, NumericalError
from sparsetrain.kernels.table_formats import INT8
from sparsetrain.serving.model import Model
from tests import small_dlrm
from tests.serving.conftest import exporting as exporting
from tests.small_dlrm import assert_same_state

NAME = "embeddings.C1.weight"


def trained(steps: int = 5) -> st.Trainer:
    trainer = small_dlrm.trainer("int8", seed=3, encoder=small_dlrm.encoder())
    for seed in range(steps):
        trainer.step(small_dlrm.batch(64, seed))
    return trainer


def test_initial_weights_are_those_of_float32_to_the_nearest_step():
    wide = small_dlrm.trainer(seed=3).state_dict()[NAME]
    found = trained(0).state_dict()[NAME]
    assert found.tobytes() == INT8.rows(wide).tobytes()


def test_memory_is_a_byte_a_number_a_scale_and_a_slot_a_row():
    trainer = trained()
    rows = sum(small_dlrm.ROWS)
    slots = [array for name, array in trainer.state_dict().items() if name.endswith("weight:sum")]
    of_tables = [array for array in slots if len(array) in small_dlrm.ROWS][:3]
    assert trainer.table_bytes + sum(array.nbytes for array in of_tables) == rows * (8 + 8)


@pytest.mark.parametrize("kind", ["sum", "mean", "weighted"])
def test_bags_of_rows_learn(kind):
    options = {**small_dlrm.KINDS[kind], "table_dtype": "int8"}
    model = st.models.DLRM(
        rows=small_dlrm.ROWS, dim=8, bottom=(16,), top=(16,), num_dense=13, **options
    )
    trainer = st.Trainer(model, st.optim.rowwise_adagrad(0.05))
    batch = small_dlrm.batch(64, kind=kind)
    losses = [float(trainer.step(batch)) for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]


def test_what_is_saved_is_loaded_and_goes_on_to_the_same_bits(tmp_path):
    trainer = trained()
    trainer.save(tmp_path / "saved")
    again = small_dlrm.share_programs(st.load(tmp_path / "saved"), "int8")
    for seed in range(5, 8):
        trainer.step(small_dlrm.batch(64, seed))
        again.step(small_dlrm.batch(64, seed))
    assert_same_state(again.state_dict(), trainer.state_dict())


def test_tables_grow_and_keep_their_rows_and_scores():
    known = small_dlrm.trainer("int8", seed=3, encoder=small_dlrm.encoder())
    known.fit(small_dlrm.raw_rows(100), batch_size=16, progress=None)
    rows = small_dlrm.raw_rows(100)
    rows["C1"] = [f"{value:08x}" for value in np.arange(100) % 70]
    grown = known.extended(known.encoder.extended(rows, min_count=1))
    before, after = known.state_dict()[NAME], grown.state_dict()[NAME]
    assert len(after) > len(before) and (after[: len(before)] == before).all()
    assert (after[len(before) :] == before[1]).all()
    np.testing.assert_array_equal(grown.predict(rows), known.predict(rows))


def test_an_exported_model_predicts_the_same_bits(exporting):
    trainer = small_dlrm.trainer("int8", seed=3, encoder=small_dlrm.encoder())
    rows = small_dlrm.raw_rows(100)
    trainer.fit(rows, batch_size=16, progress=None)
    expected = trainer.predict(rows)
    np.testing.assert_array_equal(Model(exporting(trainer)).predict(rows), expected)


def test_a_row_that_is_not_finite_is_named_and_refused(tmp_path):
    trainer = trained()
    arrays = trainer.state_dict()
    table = INT8.floats(arrays[NAME])
    table[4] = np.nan
    trainer.load_state_dict({**arrays, NAME: INT8.rows(table)})
    with pytest.raises(NumericalError, match=f"parameter '{NAME}' holds numbers that are not fini"):
        trainer.save(tmp_path / "saved")


def test_a_table_in_int8_that_is_also_read_as_a_whole_is_refused():
    module = tvm.IRModule({"loss": _loss()})
    with pytest.raises(
        ConfigError, match="densify: 'table' is an int8 table, which takes only row-"
    ):
        st.value_and_grad(module, "loss", densify=["table"])


def test_other_matrices_of_int8_are_constants():
    program = st.value_and_grad(tvm.IRModule({"loss": _loss(cast=True)}), "loss")
    assert list(program.gradient.structure) == ["bias"]


def _loss(cast: bool = False) -> relax.Function:
    table = relax.Var("table", relax.TensorType((5, 8), "int8"))
    bias = relax.Var("bias", relax.TensorType((), "float32"))
    ids = relax.Var("ids", relax.TensorType((3,), "int32"))
    builder = relax.BlockBuilder()
    with builder.function("loss", [ids, table, bias], attrs={"num_input": 1}):
        with builder.dataflow():
            read = relax.op.astype(table, "float32") if cast else lookup(table, ids)
            total = builder.emit(relax.op.sum(builder.emit(read)))
            loss = builder.emit_output(relax.op.add(total, bias))
        builder.emit_func_output(loss)
    return builder.get()["loss"]


def test_optimizers_with_whole_rows_of_slots_are_refused_before_a_step():
    with pytest.raises(ConfigError, match="'embeddings.width8.weight' is int8, and adam keeps a"):
        st.Trainer(small_dlrm.model("int8"), st.optim.adam(0.1))
