# SPDX-License-Identifier: Apache-2.0
"""The gate between user memory and kernels, and the other promises of `runtime`."""

import copy
import pickle

import numpy as np
import pytest
import tvm
import tvm_ffi

from sparsetrain import runtime
from sparsetrain.cli.stop import Stopped
from sparsetrain.errors import ConfigError, DataError, ResourceError
from sparsetrain.runtime.host import host_target
from sparsetrain.runtime.import_tvm import let_pass
from sparsetrain.runtime.targets import resolve_target
from sparsetrain.runtime.tensors import leading_rows
from sparsetrain.sparse_tensor import RowSparse
from tests.array_layouts import LAYOUTS as ANY
from tests.heap import STATM, resident_bytes
from tests.helpers import assert_row_sparse, assert_same_bits, dense_sum

# How user memory of the right dtype may lie.
LAYOUTS = {name: lay for name, lay in ANY.items() if name not in ("lists", "twice as wide")}
LAYOUTS["broadcast"] = lambda a: np.broadcast_to(a[:1], a.shape)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_the_gate_gives_the_same_numbers_in_aligned_memory(layout, dtype):
    array = LAYOUTS[layout](np.arange(35).reshape(7, 5).astype(dtype))
    tensor = runtime.as_tensor(array)
    view = runtime.as_numpy(tensor)
    assert view.ctypes.data % 64 == 0
    assert_same_bits(tensor, np.array(array.tolist(), dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_kernel_gets_the_right_numbers_from_any_layout(layout):
    indices, values = np.array([[2], [0], [2], [4]]), np.arange(20.0).reshape(4, 5)
    indices, values = LAYOUTS[layout](indices)[:, 0], LAYOUTS[layout](values)
    expected = dense_sum(indices, values, 6)
    assert_row_sparse(RowSparse.from_numpy(indices, values, 6).coalesce(), expected)


def test_the_gate_copies_so_later_changes_do_not_show():
    array = np.arange(4.0)
    tensor = runtime.as_tensor(array)
    array[:] = -1
    assert_same_bits(tensor, np.arange(4.0))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1,)])
def test_the_gate_takes_scalars_and_empty_arrays(shape):
    assert_same_bits(runtime.as_tensor(np.full(shape, 7, np.float32)), np.full(shape, 7, "f4"))


@pytest.mark.parametrize(
    ("given", "dtype", "expected"),
    [
        ([1, 2], "int32", np.array([1, 2], "int32")),
        (np.array([3], "uint64"), "int64", np.array([3])),
        ([True, False], "int32", np.array([1, 0], "int32")),
        ([1, 0], "float32", np.array([1, 0], "float32")),
        (2.5, None, np.array(2.5)),
        ([], "int64", np.array([], "int64")),
    ],
)
def test_the_gate_converts_what_fits(given, dtype, expected):
    assert_same_bits(runtime.as_tensor(given, dtype), expected)


@pytest.mark.parametrize(
    ("given", "dtype", "message"),
    [
        ([2**31], "int32", "values of dtype int64 do not fit int32 without loss"),
        ([-1], "uint8", "values of dtype int64 do not fit uint8 without loss"),
        (np.array([2**63], "uint64"), "int64", "values of dtype uint64 do not fit int64 "),
        ([1.0], "int64", "values of dtype float64 do not fit int64 without loss"),
        ([float("nan")], "int32", "values of dtype float64 do not fit int32 without loss"),
        (["a"], None, "an array of dtype <U1 is not an array of numbers"),
        ([None, 1], None, "an array of dtype object is not an array of numbers"),
        ([1j], None, "an array of dtype complex128 is not an array of numbers"),
    ],
)
def test_the_gate_refuses_what_would_be_lost(given, dtype, message):
    with pytest.raises(DataError, match=message):
        runtime.as_tensor(given, dtype)


@pytest.mark.parametrize("alias", ["f4", "<f4", ">f4", np.dtype("f4"), np.float32, "single"])
def test_the_gate_knows_every_name_of_a_dtype(alias):
    tensor = runtime.as_tensor([[1.5, 2.0]], alias)
    assert str(tensor.dtype) == "float32"
    assert_same_bits(tensor, np.float32([[1.5, 2.0]]))


def test_a_tensor_passes_the_gate_as_it_is_unless_another_dtype_is_wanted():
    tensor = runtime.as_tensor([1, 2])
    assert runtime.as_tensor(tensor) is tensor
    assert runtime.as_tensor(tensor, "int64") is tensor
    assert_same_bits(runtime.as_tensor(tensor, "float32"), np.array([1, 2], "f4"))


def test_a_numpy_view_of_a_tensor_shares_memory_and_is_read_only_unless_asked():
    tensor = runtime.zeros((2, 3), "float32")
    assert not runtime.as_numpy(tensor).flags.writeable
    runtime.as_numpy(tensor, writable=True)[1, 2] = 5
    assert_same_bits(tensor, np.array([[0, 0, 0], [0, 0, 5]], "f4"))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_leading_rows_share_the_memory_of_the_tensor(rows):
    tensor = runtime.as_tensor(np.arange(6.0).reshape(3, 2))
    view = leading_rows(tensor, rows)
    runtime.as_numpy(tensor, writable=True)[...] += 1
    assert_same_bits(view, np.arange(1.0, 7).reshape(3, 2)[:rows])


def test_out_of_memory_names_what_it_was_for_and_the_bytes():
    message = r"no memory for table 'C3': shape \(2199023255552,\) float32 needs 8192.00 GiB"
    with pytest.raises(ResourceError, match=message):
        runtime.empty((2**41,), "float32", "table 'C3'")


AUTO = pytest.param("auto", marks=pytest.mark.cpu("it means the GPU where there is one"))


@pytest.mark.parametrize("word", [AUTO, "cpu"])
def test_the_words_for_this_machine_name_its_cpu(word):
    assert str(resolve_target(word)) == str(host_target())


def test_a_target_of_kind_llvm_is_taken_as_it_is():
    target = tvm.target.Target({"kind": "llvm", "opt-level": 2})
    assert resolve_target(target) is target
    assert resolve_target("llvm").kind.name == "llvm"


@pytest.mark.parametrize("target", ["cpus", None, 3, tvm.target.Target("c")])
def test_a_target_of_another_kind_is_refused_with_what_there_is(target):
    with pytest.raises(ConfigError, match="is not supported: use 'auto', 'cpu', 'cuda', 'llvm' or"):
        resolve_target(target)


@pytest.mark.skipif(not STATM.exists(), reason="reads the memory in use from Linux's /proc")
def test_results_of_ever_new_sizes_leave_no_memory_behind():
    values = np.zeros((4200, 64), "f4")  # 1 MiB
    RowSparse.from_numpy(np.zeros(4200, "i4"), values, 5).scale(2)
    before = resident_bytes()
    for entries in range(4000, 4200):
        RowSparse.from_numpy(np.zeros(entries, "i4"), values[:entries], 5).scale(2)
    assert resident_bytes() - before < 20 * 2**20


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Stopped])
def test_an_interrupt_passes_through_tvm(kind):
    def interrupted(_):
        raise kind(2) if kind is Stopped else kind

    let_pass(Stopped)
    with pytest.raises(kind):
        tvm_ffi.convert(interrupted)(1)


def test_a_large_tensor_is_aligned_written_to_and_given_back():
    before = resident_bytes()
    for _ in range(20):
        tensor = runtime.empty((1 << 20, 3), "float64")
        view = runtime.as_numpy(tensor, writable=True)
        view[...] = 1
        assert view.ctypes.data % 64 == 0 and view.flags.c_contiguous
        assert runtime.as_numpy(tensor)[-1].tolist() == [1, 1, 1]
        del tensor, view
    assert resident_bytes() - before < 60e6  # two of them


def test_a_view_keeps_the_memory_of_a_large_tensor():
    view = runtime.as_numpy(runtime.zeros((1 << 21,), "int32"))
    other = runtime.zeros((1 << 21,), "int32")
    runtime.as_numpy(other, writable=True)[...] = 7
    assert not view.any()


COPIES = {
    "pickled": lambda tensor: pickle.loads(pickle.dumps(tensor)),  # noqa: S301
    "copied": copy.deepcopy,
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
def test_a_pickled_or_copied_tensor_has_memory_of_its_own_and_the_same_bits(copied, dtype):
    tensor = runtime.as_tensor(np.arange(6).reshape(2, 3), dtype)
    again = copied(tensor)
    runtime.as_numpy(tensor, writable=True)[...] = 0
    assert again.dtype == tensor.dtype
    assert runtime.as_numpy(again).astype(int).tolist() == [[0, 1, 2], [3, 4, 5]]
