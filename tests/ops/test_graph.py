# SPDX-License-Identifier: Apache-2.0
"""A sparse matrix of ones times dense rows, and its derivative, against NumPy in float64."""

import numpy as np
import pytest
import tvm
from scipy.sparse import random_array
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain import ad
from sparsetrain.errors import ConfigError
from sparsetrain.ops.graph import csr_product


def product_of(*values):
    return nn.wrap_nested(csr_product(*(value._expr for value in values)), "product")


@pytest.mark.parametrize("rows", [1, 3, 130])
def test_a_product_and_its_derivative_are_those_of_float64(rows):
    matrix = random_array((rows, 40), density=0.1, rng=np.random.default_rng(0), format="csr")
    transposed = matrix.T.tocsr()
    given = {
        "columns": matrix.indices.astype(np.int32),
        "ends": matrix.indptr[1:].astype(np.int64),
        "transposed_columns": transposed.indices.astype(np.int32),
        "transposed_ends": transposed.indptr[1:].astype(np.int64),
    }
    dense = np.random.default_rng(1).normal(size=(40, 6))

    class Module(nn.Module):
        def loss(self, *values):
            found = product_of(*values)
            return nn.op.sum(found * found)

    kinds = {"dense": (["C", 6], "float64")}
    kinds |= {
        n: (["E" if "columns" in n else "C" if "tr" in n else "R"], v.dtype)
        for n, v in given.items()
    }
    specs = [nn.spec.Tensor(shape, str(dtype)) for shape, dtype in kinds.values()]
    method = nn.spec.MethodSpec(Module().loss, [*kinds], specs, "plain", "plain")
    exported, _ = Module().export_tvm({"loss": method})
    program = st.value_and_grad(exported, "loss", ["dense"], target="cpu")
    wanted = (matrix != 0).astype(float) @ dense
    loss, gradients = program({"dense": dense}, given)
    assert float(loss.numpy()) == pytest.approx((wanted**2).sum(), rel=1e-12)
    of_dense = 2 * (matrix != 0).astype(float).T @ wanted
    np.testing.assert_allclose(gradients["dense"].numpy(), of_dense, rtol=1e-12)
    ad.check_grads(program, {"dense": dense}, given, directions=2)


def test_operands_of_another_form_are_refused():
    x = tvm.relax.Var("x", tvm.relax.TensorType([4, 3], "float32"))
    ids = tvm.relax.Var("ids", tvm.relax.TensorType([4], "int32"))
    with pytest.raises(ConfigError, match="csr_product takes"):
        tvm.relax.BlockBuilder().normalize(csr_product(x, ids, ids, ids, ids))
