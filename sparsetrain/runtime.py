# SPDX-License-Identifier: Apache-2.0
"""The one door to TVM's runtime: threads, targets, memory, compiling.

Invariant: user memory reaches a kernel through `as_tensor` only. Generated code assumes 64-byte
alignment and C order and checks neither, so the gate copies; a copy of a batch costs microseconds.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np

from sparsetrain.errors import ConfigError, DataError, ResourceError
from sparsetrain.memory import LARGE, aligned


def available_cores() -> int:
    """Cores this process may run on (its affinity mask, not the machine's count)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# TVM's own default is half the cores, and it pins threads from core 0 up, so that two jobs
# on one machine share a core. Both must be set before the pool starts; the user's values win.
os.environ.setdefault("TVM_NUM_THREADS", str(available_cores()))
os.environ.setdefault("TVM_BIND_THREADS", "0")

import tvm  # noqa: E402  (the two settings above must come first)
import tvm_ffi  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.s_tir import dlight  # noqa: E402

from sparsetrain import gpu as gpu  # noqa: E402
from sparsetrain import on_stack  # noqa: E402

NDArray: TypeAlias = tvm.runtime.Tensor


def num_threads() -> int:
    """Threads that kernels started from this Python thread run on."""
    return int(tvm.get_global_func("runtime.NumThreads")())


def set_num_threads(count: int) -> None:
    """Run kernels started from this Python thread on `count` threads from now on.

    Results do not depend on the number. ``TVM_NUM_THREADS``, or the cores this process may use,
    decide before the first call.

    Raises
    ------
    ConfigError
        If `count` is below 1, or above what the pool was started with: it cannot grow.
    """
    if count < 1:
        raise ConfigError(f"set_num_threads: {count} is below 1")
    os.environ["TVM_NUM_THREADS"] = str(count)  # for a pool that is not started yet
    tvm.get_global_func("runtime.config_threadpool")(_SHARE_ALL_CORES, count)
    if num_threads() != count:
        raise ConfigError(
            f"set_num_threads: kernels already run on {num_threads()} threads, and TVM's pool "
            f"cannot grow to {count}: call it before the first kernel, or set TVM_NUM_THREADS"
        )


# TVM's mode that leaves it to the system which core a thread runs on.
_SHARE_ALL_CORES = -3


@cache
def host_target() -> tvm.target.Target:
    """This machine's CPU, with the instruction set it really has; always the same object."""
    return tvm.target.Target.from_device("cpu")


def resolve_target(target: str | tvm.target.Target = "auto") -> tvm.target.Target:
    """Turn a user's word for a target into a TVM target.

    Parameters
    ----------
    target : str or tvm.target.Target
        ``"cpu"`` is this machine's CPU, ``"llvm"`` a generic one, ``"cuda"`` this machine's GPU,
        ``"auto"`` the GPU if there is one that can be used, else the CPU; a `tvm.target.Target` of
        kind ``llvm`` or ``cuda`` is taken as it is.

    Raises
    ------
    ConfigError
        If the target is neither, or ``"cuda"`` cannot be used.
    """
    if isinstance(target, str) and target in _NAMED_TARGETS:
        return _NAMED_TARGETS[target]()
    if gpu.is_cuda(target):
        return gpu.with_host(target)
    if not isinstance(target, tvm.target.Target) or target.kind.name != "llvm":
        raise ConfigError(
            f"target {str(target)!r} is not supported: use 'auto', 'cpu', 'cuda', 'llvm' or a "
            "tvm.target.Target of kind 'llvm' or 'cuda'"
        )
    return target


@cache
def _best_target() -> tvm.target.Target:
    why_not = gpu.problem()
    if why_not is None:
        return gpu.target()
    if gpu.has_driver():  # who has no GPU needs no word about it
        warnings.warn(f"running on the CPU: {why_not}", RuntimeWarning, stacklevel=4)
    return host_target()


_NAMED_TARGETS = {
    "auto": lambda: _best_target(),
    "cpu": lambda: host_target(),
    "cuda": lambda: gpu.target(),
    "llvm": lambda: tvm.target.Target("llvm"),
}


def device_of(target: tvm.target.Target) -> tvm.runtime.Device:
    """Where programs for a target run and keep their tensors."""
    return tvm.cuda() if gpu.is_cuda(target) else tvm.cpu()


def on_gpu(tensor: NDArray) -> bool:
    """Whether a tensor lies in the memory of a CUDA device."""
    return bool(tensor.device.dlpack_device_type() == gpu.DEVICE_TYPE)


def target_of(tensor: NDArray) -> tvm.target.Target:
    """What to compile a kernel for that works on a tensor."""
    return gpu.target() if on_gpu(tensor) else host_target()


def as_tensor(array: Any, dtype: str | None = None) -> NDArray:
    """Copy anything NumPy understands into aligned, contiguous memory of TVM's.

    A `tvm.runtime.Tensor` of the right dtype is returned as it is.

    Parameters
    ----------
    array : array_like
        Any shape, strides, alignment, byte order; may be read-only.
    dtype : str, optional
        Wanted dtype; by default the array's own, in native byte order.

    Raises
    ------
    DataError
        If a conversion would lose integers or the dtype is no number.
    """
    if isinstance(array, tvm.runtime.Tensor):
        if dtype is None or str(array.dtype) == dtype:
            return array
        array = as_numpy(array)
    source = np.asarray(array)
    wanted = np.dtype(dtype) if dtype else source.dtype.newbyteorder("=")
    if source.dtype.kind not in "biuf":
        raise DataError(f"an array of dtype {source.dtype} is no array of numbers")
    if wanted.kind in "iu" and not _fits(source, wanted):
        raise DataError(f"values of dtype {source.dtype} do not fit {wanted} without loss")
    tensor = empty(source.shape, wanted.name)
    as_numpy(tensor, writable=True)[...] = source
    return tensor


def _fits(source: np.ndarray, wanted: np.dtype) -> bool:
    if source.dtype == wanted or source.size == 0:
        return True
    if source.dtype.kind == "f":
        return False
    limits = np.iinfo(wanted)
    return bool(source.min() >= limits.min and source.max() <= limits.max)


def as_numpy(tensor: NDArray, *, writable: bool = False) -> np.ndarray:
    """View a tensor in host memory as a NumPy array; one on a device is copied.

    Writing into a copy would be lost, so only tensors in host memory can be had `writable`; see
    `copy_`.
    """
    if on_gpu(tensor):
        assert not writable, "a tensor on a device has no writable view"
        return tensor.numpy()
    view = np.from_dlpack(tensor)
    if not writable:
        view.flags.writeable = False
    return view


def empty(
    shape: tuple[int, ...],
    dtype: str,
    what: str = "an array",
    device: tvm.runtime.Device | None = None,
) -> NDArray:
    """Allocate uninitialised memory; out of memory names `what` and the bytes."""
    size = prod(map(int, shape)) * np.dtype(dtype).itemsize
    try:
        if device is not None:
            return tvm.runtime.empty(shape, dtype, device)
        if size >= LARGE:
            return tvm.runtime.from_dlpack(aligned(size).view(dtype).reshape(shape))
        return tvm.runtime.empty(_extents(shape), dtype)
    except Exception as error:  # TVM reports std::bad_alloc, or CUDA's word, as an InternalError
        where = "" if device is None else f" on {device}"
        raise ResourceError(
            f"no memory{where} for {what}: shape {shape} {dtype} needs {size / 2**30:.2f} GiB"
        ) from error


# Few are kept: what outlives the large blocks around it keeps the heap from joining them.
@lru_cache(maxsize=16)
def _extents(shape: tuple[int, ...]) -> tvm_ffi.Shape:
    """TVM's form of a shape; to make one takes longer than to allocate."""
    return tvm_ffi.Shape(tuple(map(int, shape)))


def reshaped(tensor: NDArray, shape: tuple[int, ...]) -> NDArray:
    """The elements of a contiguous tensor in another shape; the memory is shared."""
    return tensor._create_view(_extents(shape))


def zeros(shape: tuple[int, ...], dtype: str, what: str = "an array") -> NDArray:
    """Allocate memory filled with zeros, without a second copy of it."""
    tensor = empty(shape, dtype, what)
    as_numpy(tensor, writable=True)[...] = 0
    return tensor


def moved(tensor: NDArray, device: tvm.runtime.Device, what: str = "an array") -> NDArray:
    """The tensor on a device: itself if it is there, else a copy; `what` as in `empty`."""
    if tensor.device == device:
        return tensor
    there = empty(tuple(map(int, tensor.shape)), str(tensor.dtype), what, device)
    return tensor.copyto(there)


def copy_(target: NDArray, source: NDArray) -> None:
    """Write the elements of `source` into `target`, wherever either lies."""
    source.copyto(target)


@contextmanager
def writing(tensor: NDArray) -> Iterator[np.ndarray]:
    """The elements to read and write, wherever they lie; on a device, when the block is over."""
    host = moved(tensor, tvm.cpu())
    yield as_numpy(host, writable=True)
    if host is not tensor:
        copy_(tensor, host)


def temporary(shape: tuple[int, ...], dtype: str, beside: NDArray) -> NDArray:
    """Uninitialised memory where `beside` lies, for as long as a step needs it.

    On a device it comes from the virtual machine's pool and goes back there.
    """
    return _pooled(shape, dtype) if on_gpu(beside) else empty(shape, dtype)


def sent(tensors: list[NDArray], target: tvm.target.Target) -> list[NDArray]:
    """Tensors where programs for a target want them; what is not there goes into the pool."""
    if not gpu.is_cuda(target):
        return tensors
    return [tensor if on_gpu(tensor) else _sent(tensor) for tensor in tensors]


def _sent(tensor: NDArray) -> NDArray:
    there = _pooled(tuple(map(int, tensor.shape)), str(tensor.dtype))
    copy_(there, tensor)
    return there


def _pooled(shape: tuple[int, ...], dtype: str) -> NDArray:
    try:
        return _pool(len(shape), dtype)(_extents(shape))
    except RuntimeError as error:  # TVM gives CUDA's word as an InternalError
        size = prod(shape) * np.dtype(dtype).itemsize
        raise ResourceError(
            f"no memory on {tvm.cuda()} for a batch: shape {shape} {dtype} needs "
            f"{size / 2**30:.2f} GiB; use smaller batches"
        ) from error


@cache
def _pool(rank: int, dtype: str) -> Any:
    """A function that allocates tensors of the shape it is given."""
    extents = [tvm.tirx.Var(f"n{axis}", "int64") for axis in range(rank)]
    builder = relax.BlockBuilder()
    shape = relax.Var("shape", relax.ShapeType(extents))
    with builder.function("allocate", [shape]):
        tensor = relax.op.builtin.alloc_tensor(
            relax.ShapeExpr(extents), dtype, runtime_device_index=0, storage_scope="global"
        )
        builder.emit_func_output(builder.emit(tensor))
    return build_relax(builder.get(), gpu.target())["allocate"]


def leading_rows(tensor: NDArray, rows: int) -> NDArray:
    """View the first `rows` rows of a contiguous tensor; the memory is shared."""
    return reshaped(tensor, (rows, *tensor.shape[1:]))


class Kernel:
    """A compiled kernel that is called by itself, not by a program; writes its output arguments."""

    __slots__ = ("_run", "name")

    def __init__(self, run: Callable[..., Any], name: str) -> None:
        self._run, self.name = run, name

    def __call__(self, *args: Any) -> Any:
        """Run on tensors and numbers."""
        return self._run(*args) if _watch is None else _watch(self.name, self._run, args)


# (name, what runs, arguments) -> what running it returns.
Watch = Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]
_watch: Watch | None = None


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Let `watch` make the calls of all kernels meanwhile, to time them."""
    global _watch
    before, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = before


def compile_kernel(
    kernel: tvm.tirx.PrimFunc, target: tvm.target.Target, name: str = "kernel"
) -> Kernel:
    """Compile one scheduled PrimFunc into a callable; `name` says what it does."""
    module = tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")})
    if gpu.is_cuda(target):
        return Kernel(gpu.compile_kernels(module, target)["kernel"], name)
    # Shared subexpressions are left to LLVM: TVM binds a float's negation to a name, of which its
    # own analysis then makes an integer, and fails.
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        run = tvm.compile(module, target, tir_pipeline=on_stack.PIPELINE)["kernel"]
    return Kernel(run, name)


@cache
def vm_pipeline(kind: str) -> tvm.transform.Pass:
    """Lower Relax to virtual-machine code for a kind of target; kernels run as they are.

    TVM's default pipeline without `RewriteDataflowReshape`, which aborts on hand-written
    kernels that have no root block. On a device every kernel gets threads.
    """
    passes = relax.transform
    return tvm.transform.Sequential(
        [
            passes.LegalizeOps(),
            *([dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())] if kind == gpu.KIND else []),
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
            passes.StaticPlanBlockMemory(),
            passes.LowerAllocTensor(),
            passes.KillAfterLastUse(),
            passes.LowerRuntimeBuiltin(),
            passes.ComputePrimValue(),
            passes.VMShapeLower(),
            passes.AttachGlobalSymbol(),
        ]
    )


def compile_relax(
    module: tvm.IRModule, target: tvm.target.Target, pipeline: tvm.transform.Pass | None = None
) -> relax.VMExecutable:
    """Compile a Relax module by a pass pipeline, `vm_pipeline` by default."""
    with target:
        module = (pipeline or vm_pipeline(target.kind.name))(module)
        lowering = None if gpu.is_cuda(target) else on_stack.PIPELINE
        return relax.build(module, target, relax_pipeline=None, tir_pipeline=lowering)


def virtual_machine(library: Any, target: tvm.target.Target) -> relax.VirtualMachine:
    """What runs the functions of a compiled Relax module, by name.

    Its memory comes from TVM's pool, which keeps a block for every size it has seen: a step of
    a known size allocates nothing. Whoever calls it with ever new sizes calls `bound_pool`.
    """
    return relax.VirtualMachine(library, device_of(target), memory_cfg="pooled")


_POOLED_SIZES = 16  # batch sizes, say: of a training run there are two, of bags one each step
_seen_sizes: set[Any] = set()


def bound_pool(tensors: Iterable[NDArray]) -> None:
    """Tell what a program is about to run on; too many different shapes empty the pool."""
    sizes = tuple(tuple(tensor.shape) for tensor in tensors)
    if sizes in _seen_sizes:
        return
    if len(_seen_sizes) >= _POOLED_SIZES:
        tvm.get_global_func("vm.builtin.memory_manager.clear")()
        _seen_sizes.clear()
    _seen_sizes.add(sizes)


def build_relax(
    module: tvm.IRModule, target: tvm.target.Target, pipeline: tvm.transform.Pass | None = None
) -> relax.VirtualMachine:
    """`compile_relax` and `virtual_machine` in one."""
    return virtual_machine(compile_relax(module, target, pipeline), target)
