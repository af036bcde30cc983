# SPDX-License-Identifier: Apache-2.0
"""Kernels against NumPy in float64, by one test body for the CPU and for CUDA.

On an emulated device threads and blocks run in several orders, and every order must give the same
bits: a missing barrier, or a result with two writers, would not.
"""

from __future__ import annotations

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.backend import backend_of
from sparsetrain.backends.cuda.kernel_table import LOOPS
from sparsetrain.backends.cuda.sparse import sort as cuda_sort
from sparsetrain.embedding import lookup_kernels as embedding_kernels
from sparsetrain.errors import DataError
from sparsetrain.kernels.loops import HOST_LOOPS
from sparsetrain.models import binned
from sparsetrain.models.binned import Sizes
from sparsetrain.models.interaction import cpu
from sparsetrain.models.numbers import Binned
from sparsetrain.optim.gradients import global_norm, nonfinite
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.targets import device_of, resolve_target
from sparsetrain.runtime.tensors import editable_numpy, target_of, to_device
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.sparse_tensor.coalesce import make_plan
from tests.cuda import device
from tests.cuda.device import on_gpu
from tests.helpers import assert_row_sparse, assert_same_bits, dense_sum, slow_except

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
ORDERS = (0, 1, 5)


def there(array, target):
    """A tensor of an array, where `target` works."""
    tensor = runtime.as_tensor(np.asarray(array))
    return to_device(tensor, device_of(resolve_target(target)))


def sparse(target, indices, values, num_rows, source=None) -> RowSparse:
    """A checked `RowSparse` where `target` works."""
    host = RowSparse.from_numpy(indices, values, num_rows, source)
    return host.with_leaves(tuple(there(leaf.numpy(), target) for leaf in host.leaves))


def in_every_order(target, compute) -> np.ndarray:
    """The result of `compute`, which must be the same whoever runs first."""
    results = []
    for order in ORDERS if target == "cuda" else ORDERS[:2]:
        with device.threads_in_order(order):
            results.append(compute())
    for result in results[1:]:
        assert_same_bits(result, results[0])
    return results[0]


# Entries, rows of the table: none, one, runs longer than a chunk and than a block of chunks, many
# digits, more than one block of the sort can take.
SIZES = [(0, 5), (1, 1), (2500, 2), (5000, 33_000_000), (9000, 700)]
CASES = [*((*size, "int32") for size in SIZES), (2500, 2, "int64")]


@pytest.mark.parametrize(
    ("entries", "num_rows", "dtype"), slow_except({*CASES} - {(9000, 700, "int32")}, CASES)
)
def test_duplicates_are_summed_and_padding_is_left_out(target, entries, num_rows, dtype):
    rng = np.random.default_rng(entries)
    indices = rng.integers(0, num_rows + 1, entries).astype(dtype)
    values = rng.standard_normal((entries, 4)).astype("f4")

    def coalesced():
        unique = sparse(target, indices, values, num_rows).coalesce()
        rows = np.unique(indices[indices < num_rows])
        assert_same_bits(unique.indices.numpy(), rows)
        return unique.values.numpy()

    found = in_every_order(target, coalesced)
    rows, place = np.unique(indices, return_inverse=True)
    sums = np.zeros((len(rows), 4))
    np.add.at(sums, place, values.astype("f8"))
    np.testing.assert_allclose(found, sums[rows < num_rows], rtol=1e-4, atol=1e-4)


# Entries, rows of the table, blocks: a part of a block, a tile and a part, two of nine rows.
SHARED = [(8193, 2**31 - 1, 128), (9000, 30, 1), (17_500, 100_000, 2)]


@pytest.mark.parametrize(("entries", "num_rows", "blocks"), slow_except(SHARED[1:2], SHARED))
def test_blocks_that_share_a_sort_keep_equal_ids_in_their_order(
    cuda, entries, num_rows, blocks, monkeypatch
):
    monkeypatch.setattr(cuda_sort, "MOST_BLOCKS", blocks)
    rng = np.random.default_rng(entries)
    indices = rng.integers(0, num_rows, entries).astype("i4")
    indices[::3] = num_rows // 2

    def order():
        return make_plan(there(indices, "cuda"), num_rows).order.numpy()

    expected = np.argsort(indices, kind="stable").astype("i4")
    assert_same_bits(in_every_order("cuda", order), expected)


def test_an_index_outside_the_table_is_refused(target):
    gradient = RowSparse(
        there(np.array([3, -1, 7, 12], "i4"), target), there(np.zeros((4, 2), "f4"), target), 10
    )
    with pytest.raises(DataError, match="2 of 4 row indices lie outside the 10 rows"):
        gradient.plan()


@pytest.mark.parametrize("width", [16, pytest.param(131, marks=pytest.mark.slow)])
def test_pooled_values_are_summed_by_their_source(target, width):
    rng = np.random.default_rng(width)
    indices, source = rng.integers(0, 9, 300), rng.integers(0, 20, 300).astype("i4")
    values = rng.standard_normal((20, width)).astype("f4")
    gradient = sparse(target, indices, values, 9, source)
    expected = dense_sum(indices, values, 9, source, "f8")
    found = in_every_order(target, lambda: gradient.coalesce().values.numpy())
    np.testing.assert_allclose(found, expected[np.unique(indices)], **CLOSE)
    assert gradient.squared_norm() == pytest.approx(np.square(expected).sum(), rel=1e-5)
    assert_same_bits(
        in_every_order(target, lambda: gradient.to_dense().numpy()),
        dense_sum(indices, values, 9, source, "f4"),
    )


def test_the_algebra_works_where_the_leaves_are(target):
    rng = np.random.default_rng(3)
    one = rng.integers(0, 6, 10), rng.standard_normal((10, 3)).astype("f4")
    two = rng.integers(0, 6, 4), rng.standard_normal((4, 3)).astype("f4")
    both = sparse(target, *one, 6).scale(2.0) + sparse(target, *two, 6)
    expected = 2 * dense_sum(*one, 6, dtype="f8") + dense_sum(*two, 6, dtype="f8")
    assert_row_sparse(both.coalesce(), expected.astype("f4"), atol=1e-5)
    assert both.values.device == there(one[0], target).device


@pytest.mark.parametrize("place", [None, 0, 3000])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_found_wherever_it_stands(target, place, bad):
    arrays = {"a": np.ones(5, "f4"), "b": np.ones((3001, 2), "f4")}
    if place is not None:
        arrays["b"][place, 1] = bad
    gradients = {name: there(array, target) for name, array in arrays.items()}
    wanted = None if place is None else "the gradient of 'b' is not finite"
    assert nonfinite(there(np.float32(1), target), gradients) == wanted
    assert nonfinite(there(np.float32(bad), target), gradients) == f"the loss is {bad}"


def test_the_global_norm_sums_duplicates_first(target):
    indices, values = np.array([2, 2, 0]), np.array([[1.0], [2.0], [4.0]], "f4")
    dense = np.arange(3000, dtype="f4") / 1000
    gradients = {"t": sparse(target, indices, values, 4), "w": there(dense, target)}
    exact = np.sqrt(9.0 + 16.0 + np.square(dense.astype("f8")).sum())
    assert global_norm(gradients) == pytest.approx(exact, rel=1e-12)


SHAPES = [
    *((1, 4, 70), (2, 1, 3), (26, 16, 19), (5, 7, 33)),
    *((250, 6, 2), (7, 32, 5), (3, 64, 3), (26, 128, 9)),
]


@pytest.mark.parametrize(
    ("features", "width", "batch"), slow_except([(2, 1, 3), (5, 7, 33)], SHAPES)
)
def test_the_interaction_and_its_cotangents(target, features, width, batch):
    rng = np.random.default_rng(width)
    x = rng.standard_normal((batch, features + 1, width)).astype("f4")
    cotangent = rng.standard_normal((batch, width + features * (features + 1) // 2)).astype("f4")
    forward, backward = interaction_kernels(features, width, target)
    inputs = there(x[:, 0].copy(), target), there(x[:, 1:].copy(), target)
    low = np.tril_indices(features + 1, -1)

    def run_forward():
        out = there(np.full_like(cotangent, 7), target)
        forward(*inputs, out)
        return out.numpy()

    def run_backward():
        outs = [there(np.full(t.shape, 7, "f4"), target) for t in inputs]
        backward(*inputs, there(cotangent, target), *outs)
        return np.concatenate([outs[0].numpy()[:, None], outs[1].numpy()], axis=1)

    wide = x.astype("f8")
    gram = np.einsum("bid,bjd->bij", wide, wide)
    expected = np.concatenate([wide[:, 0], gram[:, low[0], low[1]]], axis=1)
    np.testing.assert_allclose(in_every_order(target, run_forward), expected, rtol=1e-4, atol=1e-4)
    matrix = np.zeros_like(gram)
    matrix[:, low[0], low[1]] = cotangent[:, width:]
    expected = np.einsum("bij,bjd->bid", matrix + matrix.transpose(0, 2, 1), wide)
    expected[:, 0] += cotangent[:, :width]
    np.testing.assert_allclose(in_every_order(target, run_backward), expected, rtol=1e-4, atol=2e-4)


def interaction_kernels(features, width, target):
    resolved = resolve_target(target)
    kernel = backend_of(resolved).kernel
    makers = (
        kernel("interaction", cpu.forward_kernel),
        kernel("interaction_backward", cpu.backward_kernel),
    )
    return [compile_kernel(make(features, width, "float32"), resolved) for make in makers]


BINS = [[-0.5, 0.0, 1.0], [2.0], [-1.0, 1.0]]


@pytest.mark.parametrize(
    ("width", "has_flags", "batch"),
    slow_except([(3, True, 70)], [(3, True, 70), (16, False, 5), (17, True, 1), (4, True, 200)]),
)
def test_vectors_of_binned_numbers_and_their_cotangents(target, width, has_flags, batch):
    """They are products of the features: a bin's share, 1 below x, and 1 for the bin."""
    rng = np.random.default_rng(batch)
    made = Binned(BINS, width, has_flags, 1.0)
    starts, scales, begins = (
        each.attrs["initial"] for each in (made.starts, made.scales, made.begins)
    )
    count, bins = starts.shape
    sizes = Sizes(2 * count + 1, count, bins, width, has_flags, "float32")
    dense = rng.normal(0, 2, (batch, sizes.inputs)).astype("f4")
    dense[:, count:] = rng.random((batch, count + 1)) < 0.3
    shapes = [(count, 2 * bins, width), (count, width), (count, width)][: 2 + has_flags]
    learnt = [rng.standard_normal(shape).astype("f4") for shape in shapes]
    cotangent = rng.standard_normal((batch, count, width)).astype("f4")
    given = [there(each, target) for each in (dense, starts, scales, begins, *learnt)]
    resolved = resolve_target(target)
    forward, backward = (
        compile_kernel(backend_of(resolved).kernel(name, host)(sizes), resolved)
        for name, host in (
            ("binned", binned.forward_kernel),
            ("binned_backward", binned.backward_kernel),
        )
    )

    def run_forward():
        out = there(np.full_like(cotangent, 7), target)
        forward(*given, out)
        return out.numpy()

    def run_backward():
        outs = [there(np.full_like(each, 7), target) for each in learnt]
        backward(*given, there(cotangent, target), *outs)
        return np.concatenate([out.numpy().ravel() for out in outs])

    x = dense[:, :count, None].astype("f8")
    reached = np.dstack([x >= begins, np.zeros_like(x)])
    one_hot = reached[..., :-1] - reached[..., 1:]
    shares = (reached[..., 1:] + one_hot * (x - starts) * scales) / np.sqrt(bins)
    features = np.dstack([shares, one_hot])
    missing = dense[:, count : 2 * count, None] * has_flags
    vectors = np.einsum("bnt,ntd->bnd", features, learnt[0]) + learnt[1]
    expected = missing * learnt[-1] + (1 - missing) * vectors
    np.testing.assert_allclose(in_every_order(target, run_forward), expected, **CLOSE)
    present = (1 - missing) * cotangent
    wanted = [np.einsum("bnt,bnd->ntd", features, present), present.sum(0)]
    wanted += [(missing * cotangent).sum(0)] * has_flags
    wanted = np.concatenate([each.ravel() for each in wanted])
    found = in_every_order(target, run_backward)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_mean_over_bags_and_its_cotangent(target):
    rng = np.random.default_rng(6)
    batch, features, width = 5, 3, 8
    lengths = rng.integers(0, 5, batch * features)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("i8")
    ids = rng.integers(0, 9, offsets[-1]).astype("i4")
    table = rng.standard_normal((9, width)).astype("f4")
    cotangent = rng.standard_normal((batch, features, width)).astype("f4")
    where = resolve_target(target)
    loops = LOOPS if target == "cuda" else HOST_LOOPS
    pool = embedding_kernels.bag_kernel(width, "float32", "int32", features, True, False, loops)
    pool = compile_kernel(pool, where)
    back = embedding_kernels.bag_mean_cotangent_kernel(width, "float32", features, True, loops)
    back = compile_kernel(back, where)
    edges = there(offsets, target)

    def run():
        out = there(np.full_like(cotangent, 7), target)
        pool(there(table, target), there(ids, target), edges, edges, out)
        return out.numpy()

    def run_back():
        out = there(np.full_like(cotangent, 7), target)
        back(there(cotangent, target), edges, out)
        return out.numpy()

    means = np.zeros((batch, features, width))
    for bag, length in enumerate(lengths):
        feature, row = divmod(bag, batch)
        rows = table[ids[offsets[bag] : offsets[bag + 1]]].astype("f8")
        means[row, feature] = rows.sum(axis=0) / max(length, 1)
    shares = np.maximum(lengths, 1).reshape(features, batch).T[:, :, None]
    np.testing.assert_allclose(in_every_order(target, run), means, **CLOSE)
    np.testing.assert_allclose(in_every_order(target, run_back), cotangent / shares, **CLOSE)


def test_host_and_device_exchange_what_they_hold(target):
    values = np.arange(6, dtype="f4").reshape(2, 3)
    tensor = there(values, target)
    with editable_numpy(tensor) as view:
        view[1] = 9
    assert_same_bits(runtime.as_numpy(tensor), np.array([[0, 1, 2], [9, 9, 9]], "f4"))
    assert on_gpu(tensor) == (target == "cuda")
    assert target_of(tensor).kind.name == ("cuda" if target == "cuda" else "llvm")
