# SPDX-License-Identifier: Apache-2.0
"""Resolve target names to TVM targets, and targets to devices."""

from __future__ import annotations

import warnings
from functools import cache

import tvm

from sparsetrain.backend import backend_of, backends, built_in, unsupported
from sparsetrain.runtime.host import host_target


def resolve_target(target: str | tvm.target.Target = "auto") -> tvm.target.Target:
    """Return the TVM target for a name or a target.

    Parameters
    ----------
    target : str or tvm.target.Target
        ``"cpu"`` is this machine's CPU, ``"llvm"`` a generic one, ``"cuda"`` this machine's GPU,
        ``"auto"`` the GPU if it can be used, else the CPU; a `tvm.target.Target` of kind ``llvm``
        or ``cuda`` is used unchanged.

    Raises
    ------
    ConfigError
        If `target` is none of these, or ``"cuda"`` cannot be used.
    """
    if isinstance(target, str) and target in _NAMED_TARGETS:
        return _NAMED_TARGETS[target]()
    if isinstance(target, str) and target in backends():
        return backends()[target].target()
    if not isinstance(target, tvm.target.Target):
        raise unsupported(target)
    return backend_of(target).complete(target)


@cache
def _best_target() -> tvm.target.Target:
    _host, *others = built_in()
    for backend in others:
        reason = backend.unavailable_reason()
        if reason is None:
            return backend.target()
        if backend.is_present:
            warnings.warn(f"running on the CPU: {reason}", RuntimeWarning, stacklevel=4)
    return host_target()


_NAMED_TARGETS = {
    "auto": lambda: _best_target(),
    "cpu": lambda: host_target(),
    "llvm": lambda: tvm.target.Target("llvm"),
}


def device_of(target: tvm.target.Target) -> tvm.runtime.Device:
    """Return the device that runs programs for a target and holds their tensors."""
    return tvm.device(backend_of(target).memory, 0)
