# SPDX-License-Identifier: Apache-2.0
"""The CUDA device that tests run on: a real one, or the emulator, or the reason why neither."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import relax

from sparsetrain.backends.cuda import Cuda, staging
from sparsetrain.backends.cuda import device as gpu
from sparsetrain.compiler import schedule
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import build_relax
from tests.cuda import emulator
from tests.devices import show

_FOUND = {
    "unavailable_reason": gpu.unavailable_reason,
    "target": gpu.target,
}  # what the package says by itself


@cache
def hopper() -> tvm.target.Target:
    """The target that everything must compile for, with or without a device."""
    return gpu.with_host(
        tvm.target.Target({"kind": "cuda", "arch": "sm_90", "max_shared_memory_per_block": 49152})
    )


def problem() -> str | None:
    """Why CUDA cannot be used here, with all devices shown."""
    with pytest.MonkeyPatch.context() as patch:
        show(patch)
        return gpu.unavailable_reason()


def skip_without_any() -> None:
    """Skip the test, with the reason, if nothing here can run a CUDA kernel."""
    if problem() is not None and emulator.missing() is not None:
        pytest.skip(f"{problem()}; {emulator.missing()}")


def on_gpu(tensor: NDArray) -> bool:
    """Whether a tensor lies on the device, be it real or emulated."""
    return bool(tensor.__dlpack_device__()[0] == gpu.MEMORY)


def is_real() -> bool:
    """Whether kernels run on a GPU; what `gpu` says does not count once one is emulated."""
    return not emulator.is_installed() and problem() is None


@contextmanager
def as_gpu(patch: pytest.MonkeyPatch) -> Iterator[tvm.target.Target]:
    """Let ``"cuda"`` mean the device that there is, for a while."""
    skip_without_any()
    show(patch)
    if not is_real():
        pretend_there_is_one(patch.setattr)
    yield gpu.target()


def pretend_there_is_one(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let the package find an emulated device, from now on or until `replace` is undone."""
    emulator.install()
    replace(gpu, "unavailable_reason", lambda: None)
    replace(gpu, "target", hopper)
    replace(Cuda, "caches", False)  # here it takes longer to link one than to compile it
    replace(staging, "CopyStream", emulator.LateCopies)


def pretend_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let the package find what there is, until `patch` is undone."""
    for name, function in _FOUND.items():
        patch.setattr(gpu, name, function)


@contextmanager
def one_program(
    names: Iterable[str], add: Callable[[relax.BlockBuilder, str], None]
) -> Iterator[Any]:
    """A virtual machine of the functions that `add` emits, all compiled together."""
    with pytest.MonkeyPatch.context() as patch, as_gpu(patch) as target:
        builder = relax.BlockBuilder()
        for name in names:
            add(builder, name)
        yield build_relax(builder.get(), target, schedule.pipeline(target))


def in_two_programs(
    quick: Container[str], names: Iterable[str], add: Callable[[relax.BlockBuilder, str], None]
) -> Callable[[str], Any]:
    """From a name to the function that `add` emits; quick ones and others are compiled apart."""

    @cache
    def machine(is_quick: bool) -> Any:
        with one_program([n for n in names if (n in quick) == is_quick], add) as built:
            return built

    return lambda name: machine(name in quick)[name]


@contextmanager
def threads_in_order(order: int) -> Iterator[None]:
    """Let an emulated device take its threads in this order; a real one takes its own."""
    if is_real():
        yield
        return
    emulator.set_order(order)
    yield
    emulator.set_order(0)


@contextmanager
def reading_sources() -> Iterator[list[str]]:
    """Collect the text of the CUDA kernels that are compiled meanwhile."""
    if not is_real():
        with emulator.reading_sources() as sources:
            yield sources
        return
    collected: list[str] = []

    def keep(code: str, _target: tvm.target.Target) -> str:
        collected.append(code)
        return code

    tvm_ffi.register_global_func("tvm_callback_cuda_postproc", keep, override=True)
    yield collected
    tvm_ffi.registry.remove_global_func("tvm_callback_cuda_postproc")
