# SPDX-License-Identifier: Apache-2.0
"""The emulator finds what it is there to find; no GPU is asked, even where there is one."""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from sparsetrain.backends.cuda import device as gpu
from tests.cuda import device, emulator
from tests.helpers import assert_same_bits

pytestmark = pytest.mark.skipif(
    device.is_real() or emulator.missing() is not None,
    reason=emulator.missing() or "there is a GPU: nothing is emulated",
)


def through_shared(place, value, barrier, back) -> tvm.tirx.PrimFunc:
    """A block whose threads write a value to a place of shared memory, and read one back."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.handle, out: T.handle):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        X = T.match_buffer(x, (64,), "float32")
        Out = T.match_buffer(out, (64,), "float32")
        for _block in T.thread_binding(1, thread="blockIdx.x"):
            for thread in T.thread_binding(64, thread="threadIdx.x"):
                shared = T.alloc_buffer((64,), "float32", scope="shared")
                shared[place(thread)] = value(X, thread)
                barrier()
                Out[thread] = shared[back(thread)]

    return kernel


def mirror(barrier) -> tvm.tirx.PrimFunc:
    """``out[n] = x[63 - n]``, if the threads meet at a barrier."""
    return through_shared(lambda n: n, lambda x, n: x[n], barrier, lambda n: 63 - n)


def last_writer() -> tvm.tirx.PrimFunc:
    """Threads of a warp write one place: the last one the same number, rising or falling."""

    def value(x, n):
        return T.min(x[n % 32], x[31 - n % 32])

    return through_shared(lambda n: n // 32, value, T.cuda.warp_sync, lambda n: n // 32)


def next_warp() -> tvm.tirx.PrimFunc:
    """A warp reads after its own barrier what another wrote before its own: no barrier of both."""
    return mirror(T.cuda.warp_sync)


def block_sync():
    return T.tvm_storage_sync("shared")


def no_sync():
    """The fault that is to be found."""


def run(kernel: tvm.tirx.PrimFunc, order: int) -> np.ndarray:
    emulator.install()
    module = tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")})
    compiled = gpu.compile_kernels(module, device.hopper())["kernel"]
    x = tvm.runtime.tensor(np.arange(64, dtype="f4"), tvm.cuda())
    out = tvm.runtime.empty((64,), "float32", tvm.cuda())
    emulator.set_order(order)
    compiled(x, out)
    emulator.set_order(0)
    return out.numpy()


@pytest.mark.parametrize("order", [0, 1, 7])
def test_a_kernel_with_its_barrier_gives_the_same_in_every_order(order):
    assert_same_bits(run(mirror(block_sync), order), np.arange(64, dtype="f4")[::-1].copy())


def test_a_missing_barrier_shows_as_nan_or_as_another_result():
    rising, falling = run(mirror(no_sync), 0), run(mirror(no_sync), 1)
    assert np.isnan(rising).any() and np.isnan(falling).any()
    assert (np.isnan(rising) != np.isnan(falling)).any()


@pytest.mark.parametrize("kernel", [last_writer, next_warp])
def test_what_threads_or_warps_in_turn_would_hide_shows_when_they_are_shuffled(kernel):
    assert_same_bits(*(run(kernel(), order) for order in (0, 1)))
    found = np.array([run(kernel(), seed) for seed in range(2, 10)])
    assert (found != found[0]).any() or np.isnan(found).any()


def test_memory_of_the_emulated_device_is_no_memory_of_the_cpu():
    emulator.install()
    tensor = tvm.runtime.tensor(np.zeros(3, "f4"), tvm.cuda())
    assert tensor.device == tvm.cuda()
    with pytest.raises(Exception, match="dlpack|device|DLPack"):
        np.from_dlpack(tensor)
