# SPDX-License-Identifier: Apache-2.0
"""Resolution of target names to TVM targets, and of targets to devices."""

from __future__ import annotations

import warnings
from functools import cache

import tvm

from sparsetrain.backends.cuda import device as gpu
from sparsetrain.errors import ConfigError
from sparsetrain.runtime.host import host_target, without_forbidden_amx


def resolve_target(target: str | tvm.target.Target = "auto") -> tvm.target.Target:
    """Return the TVM target that a name, or a target, stands for.

    Parameters
    ----------
    target : str or tvm.target.Target
        ``"cpu"`` is this machine's CPU, ``"llvm"`` a generic one, ``"cuda"`` this machine's GPU,
        ``"auto"`` the GPU if it can be used, else the CPU; a `tvm.target.Target` of kind ``llvm``
        or ``cuda`` stands for itself.

    Raises
    ------
    ConfigError
        If it is none of these, or ``"cuda"`` cannot be used.
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
    return without_forbidden_amx(target)


@cache
def _best_target() -> tvm.target.Target:
    reason = gpu.unavailable_reason()
    if reason is None:
        return gpu.target()
    if gpu.has_driver() and not gpu.is_hidden():
        warnings.warn(f"running on the CPU: {reason}", RuntimeWarning, stacklevel=4)
    return host_target()


_NAMED_TARGETS = {
    "auto": lambda: _best_target(),
    "cpu": lambda: host_target(),
    "cuda": lambda: gpu.target(),
    "llvm": lambda: tvm.target.Target("llvm"),
}


def device_of(target: tvm.target.Target) -> tvm.runtime.Device:
    """The device that runs programs for a target and holds their tensors."""
    return tvm.cuda() if gpu.is_cuda(target) else tvm.cpu()
