# SPDX-License-Identifier: Apache-2.0
"""The CUDA device: its target, why it may be unavailable, and how its kernels are compiled.

nvcc compiles kernels without fast-math. With fast-math, TVM's default, square roots and divisions
would be rounded differently than on a CPU, and `expf` would be an approximation. The environment
variables set here keep any values that the user has given them.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from functools import lru_cache
from typing import Any

# TVM reads these variables at every compilation. In NVRTC, no option undoes everything that
# fast-math replaces, so the compiler is nvcc.
os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
os.environ.setdefault("TVM_CUDA_NVCC_NO_FAST_MATH", "1")
os.environ.setdefault(
    "TVM_CUDA_NVRTC_EXTRA_OPTS", "--ftz=false --prec-div=true --prec-sqrt=true --fmad=true"
)

import tvm  # noqa: E402  (after the settings)

from sparsetrain.errors import ConfigError  # noqa: E402
from sparsetrain.runtime import cuda_wheels  # noqa: E402
from sparsetrain.runtime.host import host_target  # noqa: E402

KIND = "cuda"
MEMORY = 2  # DLPack's number for CUDA
_BF16_CAPABILITY = 80  # the lowest compute capability with bfloat16 in tensor cores


def has_driver() -> bool:
    """Whether NVIDIA's driver is installed."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def is_hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides all devices from this process."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")


def unavailable_reason() -> str | None:
    """Return in one line why CUDA cannot be used, or None if it can."""
    if not has_driver():
        return "there is no NVIDIA driver (libcuda.so.1)"
    if is_hidden():  # checked before CUDA is initialized; afterwards hidden devices stay hidden
        return "CUDA_VISIBLE_DEVICES hides all devices"
    tvm.backend.load(KIND)  # `runtime.import_tvm` does not load this backend of TVM
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        needed = f"{cuda_wheels.RUNTIME} of CUDA 13: {cuda_wheels.INSTALL}"
        return f"TVM's CUDA runtime does not load: it needs {needed}"
    if not tvm.cuda(0).exist:
        return "there is an NVIDIA driver, but TVM sees no device (nvidia-smi tells more)"
    mode = os.environ["TVM_CUDA_COMPILE_MODE"].lower()
    if mode == "nvcc" and shutil.which("nvcc") is None:
        return f"kernels are compiled by nvcc, which is not on PATH: {cuda_wheels.INSTALL}"
    return None


@lru_cache(maxsize=1)
def target() -> tvm.target.Target:
    """Return the target of this machine's CUDA device and CPU.

    Raises
    ------
    ConfigError
        If CUDA cannot be used.
    """
    reason = unavailable_reason()
    if reason is not None:
        raise ConfigError(f"target 'cuda' cannot be used: {reason}")
    return with_host(tvm.target.Target.from_device(KIND))


def with_host(device: tvm.target.Target) -> tvm.target.Target:
    """Set the host of a CUDA target to this machine's CPU, unless it names a host."""
    tvm.backend.load(KIND)
    if device.host is not None:
        return device
    return device.with_host(host_target())


def has_tensor_cores(target: tvm.target.Target | None) -> bool:
    """Whether a target has tensor cores for float16 and bfloat16: sm_80 or later."""
    if target is None or target.kind.name != KIND:
        return False
    digits = "".join(c for c in str(target.attrs["arch"]) if c.isdigit())
    return bool(digits) and int(digits) >= _BF16_CAPABILITY


def compile_kernels(module: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Compile hand-written kernels, which already contain all barriers.

    TVM's `ThreadSync` would add barriers wherever it cannot prove that threads use separate parts
    of shared memory, and fails if a barrier would be in a branch. TVM's pass for common
    subexpressions is disabled too, because nvcc has one.
    """
    context = tvm.transform.PassContext(
        disabled_pass=["s_tir.ThreadSync"], config={"tirx.disable_cse_tir": True}
    )
    with target, context:  # nvcc compiles for the current target's architecture
        return tvm.compile(module, target)
