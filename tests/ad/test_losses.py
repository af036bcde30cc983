# SPDX-License-Identifier: Apache-2.0
"""Errors of losses and lookups, whose kernels check no extent."""

import pytest
import tvm
from tvm import relax

import sparsetrain as st
from sparsetrain.embedding import lookup
from sparsetrain.errors import ConfigError

B, N = (tvm.tirx.Var(name, "int64") for name in "BN")


def tensor(name, *shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def normalized(expr):
    return relax.BlockBuilder().normalize(expr)


@pytest.mark.parametrize(
    "labels",
    [tensor("y", B), tensor("y", B, 2), tensor("y", N, 1), tensor("y", B, 1, dtype="float64")],
    ids=lambda labels: str(labels.ty),
)
def test_labels_of_another_shape_or_dtype_are_refused(labels):
    with pytest.raises(ConfigError, match="bce_with_logits: logits are .*: reshape or cast one"):
        normalized(st.ad.bce_with_logits(tensor("z", B, 1), labels))


def test_labels_whose_shape_is_written_in_another_way_are_taken():
    loss = normalized(st.ad.bce_with_logits(tensor("z", B + N), tensor("y", N + B)))
    assert len(loss.ty.shape) == 1


@pytest.mark.parametrize("shape", [(6,), (6, 2, 2)])
def test_a_table_that_is_no_matrix_is_refused(shape):
    with pytest.raises(ConfigError, match=r"a table to look up must have the shape \(V, D\), not"):
        normalized(lookup(tensor("table", *shape), tensor("ids", N, dtype="int64")))
