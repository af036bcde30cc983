# SPDX-License-Identifier: Apache-2.0
"""Products with an extent of one, with what is fused into them, against NumPy."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import sparsetrain as st
from sparsetrain.runtime import as_numpy, workspace
from tests.helpers import slow_except
from tests.models.interactions import in_numpy, mlp_in_numpy


def layer(rows, inner, columns, epilogue):
    """relu(x w' + b) or x w' + b, as a module."""
    x = relax.Var("x", relax.TensorType((rows, inner), "float32"))
    w = relax.Var("w", relax.TensorType((columns, inner), "float32"))
    b = relax.Var("b", relax.TensorType((columns,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, b]):
        with builder.dataflow():
            product = builder.emit(op.matmul(x, builder.emit(op.permute_dims(w))))
            total = builder.emit(op.add(product, b))
            out = builder.emit_output(op.nn.relu(total) if epilogue == "relu" else op.exp(total))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("epilogue", ["relu", "exp"])
@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(1, 1, 1), (1, 5, 33), (7, 1, 2), (7, 2, 1), (7, 5, 33)]
)
def test_an_epilogue_is_applied_once(rows, inner, columns, epilogue):
    rng = np.random.default_rng(rows + 10 * inner + 100 * columns)
    x, w, b = (
        rng.standard_normal(s).astype("f4") for s in [(rows, inner), (columns, inner), columns]
    )
    found = st.Program(layer(rows, inner, columns, epilogue), "main")({}, {"x": x, "w": w, "b": b})
    total = x.astype("f8") @ w.T + b
    expected = np.maximum(total, 0) if epilogue == "relu" else np.exp(total)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


UNITS = [{"num_dense": 1, "top": (1,)}, {"dim": 1, "bottom": (1,)}, {"rows": [7], "dim": 3}]


@pytest.mark.parametrize("shape", slow_except(UNITS[1:2], UNITS), ids=str)
def test_a_dlrm_with_an_extent_of_one_agrees_with_numpy(shape):
    config = {"rows": [7, 5], "dim": 4, "bottom": (6,), "top": (6,), "num_dense": 3} | shape
    trainer = st.Trainer(st.models.DLRM(**config), st.optim.sgd(0.1))
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((9, config["num_dense"])).astype("f4")
    ids = np.stack([rng.integers(0, rows, 9) for rows in config["rows"]], axis=1)
    params = trainer.state_dict()
    x = mlp_in_numpy(params, "bottom", dense.astype("f8"), last_relu=True)
    e = [params[f"embeddings.C{f + 1}.weight"][ids[:, f]] for f in range(ids.shape[1])]
    pairs = in_numpy(x, np.stack(e, axis=1).astype("f8"))
    logits = mlp_in_numpy(params, "top", pairs, last_relu=False)[:, 0]
    found = trainer.predict(st.data.Batch(dense, ids))
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logits)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("batch", "dtype"), [(1, "float32"), (9, "float32"), (5, "float64")])
def test_one_row_for_each_matrix_of_a_batch_reads_nothing_behind_its_end(batch, dtype, monkeypatch):
    allocate = workspace.empty

    def full_of_nan(*arguments):
        tensor = allocate(*arguments)
        as_numpy(tensor, writable=True)[...] = 0xFF
        return tensor

    monkeypatch.setattr(workspace, "empty", full_of_nan)
    size = tvm.tirx.Var("B", "int64")
    query = relax.Var("query", relax.TensorType((size, 4), dtype))
    keys = relax.Var("keys", relax.TensorType((size, 3, 4), dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [query, keys]):
        with builder.dataflow():
            row = builder.emit(op.expand_dims(op.exp(query), 1))
            out = builder.emit_output(op.matmul(row, op.permute_dims(keys, [0, 2, 1])))
        builder.emit_func_output(out)
    rng = np.random.default_rng(batch)
    q, k = (rng.standard_normal(s).astype(dtype) for s in [(batch, 4), (batch, 3, 4)])
    found = st.Program(builder.get(), "main")({}, {"query": q, "keys": k})
    expected = np.exp(q)[:, None] @ k.transpose(0, 2, 1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
