# SPDX-License-Identifier: Apache-2.0
"""Writes by ids against NumPy; outside a tensor nothing is written."""

from itertools import product

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import sparsetrain as st
from sparsetrain.errors import DataError
from tests.helpers import slow_except
from tests.ops.indexing.programs import TARGETS, compiled, of_variables, run
from tests.ops.indexing.test_reads import FAR, X

REDUCTIONS = {
    "update": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "mean": lambda old, new: (old + new) / 2,
}
NEW = -np.arange(60, dtype="float32").reshape(5, 4, 3)


def written(x, places, new, how="update"):
    """NumPy's; a place of None is left out."""
    x = x.copy()
    for place, value in zip(places, new.reshape(len(places), -1), strict=True):
        if place is not None:
            x[place] = REDUCTIONS[how](x[place], value.reshape(x[place].shape))
    return x


# The operator; the tensor, ids and new values; where each of these is written.
WRITES = {
    "scatter_nd": (
        lambda x, ids, new: op.scatter_nd(x, ids, new),
        {"x": X, "ids": np.array([[0, 1], [-1, -4], [4, 4], [-6, 0]]), "new": NEW[0]},
        [(0, 1), (4, 0), None, None],
    ),
    "scatter_nd of one axis": (
        lambda x, ids, new: op.scatter_nd(x, ids, new),
        {"x": X, "ids": np.array([[-1], [-5], [5], [-FAR]]), "new": NEW[:4]},
        [4, 0, None, None],
    ),
    "scatter_nd of elements": (
        lambda x, ids, new: op.scatter_nd(x, ids, new),
        {"x": X[0, 0], "ids": np.array([[-1], [1], [3]], "int32"), "new": NEW[1, 1]},
        [2, 1, None],
    ),
    "scatter_elements": (
        lambda x, ids, new: op.scatter_elements(x, ids, new, axis=0),
        {"x": X[:, :, 0], "ids": np.array([[0, -1], [4, -4], [5, FAR]]), "new": NEW[:3, :2, 1]},
        [(0, 0), (4, 1), (4, 0), (1, 1), None, None],
    ),
    "scatter_elements of the last axis": (
        lambda x, ids, new: op.scatter_elements(x, ids, new, axis=-1),
        {"x": X[:, :, 0], "ids": np.array([[0, -1], [3, 4], [-5, -4]]), "new": NEW[:3, :2, 1]},
        [(0, 0), (0, 3), (1, 3), None, None, (2, 0)],
    ),
    "index_put": (
        lambda x, i, j, new: op.index_put(x, (i, j), new),
        {
            "x": X[:, :, 0],
            "i": np.array([0, -1, 5, -6]),
            "j": np.array([-4, 3, 1, 0]),
            "new": NEW[1, :, 0],
        },
        [(0, 0), (4, 3), None, None],
    ),
}


QUICK = [*((name, "llvm") for name in WRITES), ("scatter_nd", "cuda"), ("index_put", "cuda")]


@pytest.mark.parametrize(
    ("name", "target"), slow_except(QUICK, product(WRITES, TARGETS)), indirect=["target"]
)
def test_ids_write_where_numpy_writes_and_outside_nothing(name, target):
    body, arrays, places = WRITES[name]
    expected = written(arrays["x"], places, arrays["new"])
    np.testing.assert_array_equal(run(body, arrays, target), expected)


# Of what was written twice, the second is by the first.
REPEATED = {"x": X[0, 0], "ids": np.array([-1, 0, 2, -4, 3]), "new": NEW.ravel()[5:10]}
SCATTERS = {
    "scatter_nd": lambda how: (
        lambda x, ids, new: op.scatter_nd(x, op.expand_dims(ids, 1), new, reduction=how)
    ),
    "scatter_elements": lambda how: lambda x, ids, new: op.scatter_elements(x, ids, new, 0, how),
    "index_put": lambda how: lambda x, ids, new: op.index_put(x, (ids,), new, how == "add"),
}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *(("scatter_nd", how) for how in REDUCTIONS if how != "mean"),
        *(("scatter_elements", how) for how in REDUCTIONS),
        *(("index_put", how) for how in ("update", "add")),
    ],
)
def test_what_is_written_twice_is_combined_in_order(name, how):
    expected = written(REPEATED["x"], [2, 0, 2, None, None], REPEATED["new"], how)
    np.testing.assert_array_equal(run(SCATTERS[name](how), REPEATED), expected)


@pytest.mark.parametrize("name", ["scatter_nd", "scatter_nd of one axis"])
def test_negative_ids_that_are_arguments_count_from_the_end(name):
    body, arrays, places = WRITES[name]
    given = arrays | {"ids": arrays["ids"][:2], "new": arrays["new"][:2]}
    expected = written(given["x"], places[:2], given["new"])
    np.testing.assert_array_equal(compiled(body, given, computed=False)(), expected)
    with pytest.raises(DataError, match="argument 'ids': id .* is outside the axis"):
        compiled(body, arrays, computed=False)()


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "uint8", "bool"])
def test_every_dtype_is_written(dtype):
    given = {"x": X[:, 0].astype(dtype), "ids": np.array([[1], [5]])}
    given["new"] = np.zeros((2, 3), dtype)
    found = run(lambda x, ids, new: op.scatter_nd(x, ids, new), given)
    np.testing.assert_array_equal(found, written(given["x"], [1, None], given["new"]))


@pytest.mark.parametrize("count", [0, 2])
def test_nothing_is_written_into_an_empty_tensor_or_by_no_ids(count):
    given = {"x": X[:0, 0] if count else X[:, 0], "ids": np.zeros((count, 1), "int64")}
    given["new"] = NEW[0, :count]
    found = run(lambda x, ids, new: op.scatter_nd(x, ids, new), given)
    np.testing.assert_array_equal(found, given["x"])


def test_lengths_that_a_call_decides_are_kept_to():
    rows, count, width = (tvm.tirx.Var(n, "int64") for n in "VND")
    shapes = {"x": (rows, width), "ids": (count, 1), "new": (count, width)}
    kinds = {"x": "float32", "ids": "int64", "new": "float32"}
    variables = [relax.Var(n, relax.TensorType(s, kinds[n])) for n, s in shapes.items()]
    program = st.Program(of_variables(op.scatter_nd, variables), "out")
    for height in (5, 3):
        given = {"x": X[:height, 0], "ids": np.array([[-1], [4]]), "new": NEW[0, :2]}
        expected = written(given["x"], [-1, 4 if height == 5 else None], given["new"])
        np.testing.assert_array_equal(program(given, {}).numpy(), expected)
