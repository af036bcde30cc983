# SPDX-License-Identifier: Apache-2.0
"""Writes by ids against NumPy; outside a tensor nothing is written."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.relax import op

from sparsetrain.errors import DataError
from sparsetrain.ops.indexing import cpu_kernel
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target
from tests.cuda.test_kernels import in_every_order
from tests.ops.indexing.programs import compiled, run

RNG = np.random.default_rng(0)
FUNCTIONS = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": np.minimum,
    "max": np.maximum,
}
FAR = 2**40


def scatter_nd(x, ids, y, reduction):
    out, function = x.copy(), FUNCTIONS[reduction]
    for at in np.ndindex(ids.shape[:-1]):
        place = ids[at]
        if all(-n <= i < n for i, n in zip(place, x.shape, strict=False)):
            out[tuple(place)] = function(out[tuple(place)], y[at])
    return out


def scatter_elements(x, ids, y, axis, reduction):
    out, function = x.copy(), FUNCTIONS[reduction]
    for at in np.ndindex(ids.shape):
        if -x.shape[axis] <= ids[at] < x.shape[axis]:
            place = tuple(ids[at] if n == axis else i for n, i in enumerate(at))
            out[place] = function(out[place], y[at])
    return out


def ids_of(shape, *extents):
    """Ids that repeat, count from both ends, and of which some are outside."""
    ids = np.stack([RNG.integers(-n, n or 1, shape) for n in extents], -1)
    ids[:1] += max(extents) + 1
    ids[-1:] -= FAR
    return ids


SHAPES = {  # of scatter_nd: the tensor, and of the ids all but the last axis, and its length
    "rows": ((7, 5), (40,), 1),
    "elements": ((7, 5), (40,), 2),
    "numbers": ((6,), (300,), 1),
    "blocks by a matrix of ids": ((6, 4, 3), (20, 2), 1),
    "wide rows": ((5, 300), (9,), 1),
    "many rows": ((3000, 2), (700,), 1),
    "no ids": ((4, 2), (0,), 1),
    "no rows": ((0, 2), (0,), 1),
}


@pytest.mark.parametrize(
    ("name", "reduction"),
    [
        *((name, reduction) for name in SHAPES for reduction in ("update", "add")),
        *(("rows", reduction) for reduction in ("mul", "min", "max")),
    ],
)
def test_scatter_nd_writes_what_numpy_writes_and_nothing_outside(name, reduction, target):
    shape, lead, depth = SHAPES[name]
    x = RNG.normal(size=shape).astype("float32")
    ids = (
        ids_of(lead, *shape[:depth]) if 0 not in (*lead, *shape) else np.zeros((*lead, depth), int)
    )
    y = RNG.normal(size=(*lead, *shape[depth:])).astype("float32")
    given = {"x": x, "ids": ids, "y": y}
    compute = compiled(lambda x, ids, y: op.scatter_nd(x, ids, y, reduction), given, target)
    np.testing.assert_array_equal(in_every_order(target, compute), scatter_nd(x, ids, y, reduction))


def test_ranges_of_rows_have_the_bits_of_one(monkeypatch, threads):
    monkeypatch.setattr(cpu_kernel, "RANGE", 64)
    x, y = (RNG.normal(size=(2, n, 3)).astype("float32") for n in (50, 700))
    places = RNG.integers(-1, 50, (1, 700))
    ids = np.where(places[0] < 0, FAR, places[0])[:, None]
    expected = np.stack([scatter_nd(x[b], ids, y[b], "add") for b in range(2)])
    for count in (1, 2, 9):
        threads(count)
        put = compile_kernel(
            cpu_kernel.put_rows_kernel.__wrapped__(3, "float32", "add"), host_target(), "put_rows"
        )
        given = [tvm.runtime.tensor(a) for a in (x, places, y, np.empty_like(x))]
        put(*given)
        np.testing.assert_array_equal(given[-1].numpy(), expected)


@pytest.fixture
def threads():
    """Tell kernels how many threads there are."""
    name = "runtime.NumThreads"
    own = tvm.get_global_func(name)
    yield lambda count: tvm_ffi.register_global_func(name, lambda: count, override=True)
    tvm_ffi.register_global_func(name, own, override=True)


@pytest.mark.parametrize("reduction", FUNCTIONS)
@pytest.mark.parametrize(("axis", "shape"), [(0, (5, 4, 3)), (1, (5, 4, 3)), (-1, (6, 4, 3))])
def test_scatter_elements_writes_what_numpy_writes_and_nothing_outside(
    axis, shape, reduction, target
):
    x = RNG.normal(size=(6, 4, 5)).astype("float32")
    ids = ids_of(shape, x.shape[axis])[..., 0]
    y = RNG.normal(size=ids.shape).astype("float32")
    given = {"x": x, "ids": ids, "y": y}
    found = run(lambda x, ids, y: op.scatter_elements(x, ids, y, axis, reduction), given, target)
    np.testing.assert_array_equal(found, scatter_elements(x, ids, y, axis % 3, reduction))


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_writes_what_numpy_writes_and_nothing_outside(accumulate, target):
    x = RNG.normal(size=(6, 4)).astype("float32")
    ids = ids_of((30,), 6, 4)
    y = RNG.normal(size=30).astype("float32")
    given = {"x": x, "i": ids[:, 0], "j": ids[:, 1].astype("int32"), "y": y}
    given["j"] = np.where(np.abs(ids[:, 1]) < 99, ids[:, 1], 99).astype("int32")
    compute = compiled(lambda x, i, j, y: op.index_put(x, [i, j], y, accumulate), given, target)
    expected = scatter_nd(x, ids, y, "add" if accumulate else "update")
    np.testing.assert_array_equal(in_every_order(target, compute), expected)


@pytest.mark.parametrize("dtype", ["float64", "int32", "int8", "float16", "bool"])
def test_other_numbers_are_written_too(dtype):
    x, y = np.zeros((4, 3), dtype), np.ones((2, 3), dtype)
    found = run(
        lambda x, ids, y: op.scatter_nd(x, ids, y), {"x": x, "ids": np.array([[1], [9]]), "y": y}
    )
    np.testing.assert_array_equal(found, [[0] * 3, [1] * 3, [0] * 3, [0] * 3])


WRITES = {
    "scatter_nd": (
        lambda x, ids, y: op.scatter_nd(x, ids, y),
        {"x": np.zeros((4, 3)), "ids": np.array([[0], [-5]]), "y": np.ones((2, 3))},
        r"'ids': id -5 at \(1, 0\) is outside the axis of 4 that relax.scatter_nd goes by",
    ),
    "scatter_elements": (
        lambda x, ids, y: op.scatter_elements(x, ids, y, axis=1),
        {"x": np.zeros((4, 3)), "ids": np.array([[0, 3]]), "y": np.ones((1, 2))},
        r"'ids': id 3 at \(0, 1\) is outside the axis of 3",
    ),
    "index_put": (
        lambda x, i, y: op.index_put(x, i, y),
        {"x": np.zeros(4), "i": np.array([0, 4]), "y": np.ones(2)},
        r"'i': id 4 at \(1,\) is outside the axis of 4",
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_ids_that_are_arguments_are_refused(name):
    body, arrays, message = WRITES[name]
    with pytest.raises(DataError, match=f"^argument {message}"):
        compiled(body, arrays, computed=False)()
