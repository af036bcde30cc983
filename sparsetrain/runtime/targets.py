# SPDX-License-Identifier: Apache-2.0
"""Resolution of target names to TVM targets, and of targets to devices."""

from __future__ import annotations

import warnings
from functools import cache

import tvm

from sparsetrain.backend import backend_of, backends, find_backend
from sparsetrain.errors import ConfigError
from sparsetrain.runtime.host import host_target


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
    known = backends()
    if isinstance(target, str) and target in known:
        return known[target].target()
    backend = find_backend(target) if isinstance(target, tvm.target.Target) else None
    if backend is None:
        kinds = " or ".join(map(repr, known))
        raise ConfigError(
            f"target {str(target)!r} is not supported: use {', '.join(map(repr, target_names()))} "
            f"or a tvm.target.Target of kind {kinds}"
        )
    return backend.complete(target)


def target_names() -> list[str]:
    """The names that stand for targets."""
    return [*dict.fromkeys(["auto", "cpu", *sorted(backends())])]


@cache
def _best_target() -> tvm.target.Target:
    for backend in [*backends().values()][::-1]:
        reason = backend.unavailable_reason()
        if reason is None:
            return backend.target()
        if backend.is_present:
            warnings.warn(f"running on the CPU: {reason}", RuntimeWarning, stacklevel=4)
    raise AssertionError("the CPU can be used")


_NAMED_TARGETS = {
    "auto": lambda: _best_target(),
    "cpu": lambda: host_target(),
    "llvm": lambda: tvm.target.Target("llvm"),
}


def device_of(target: tvm.target.Target) -> tvm.runtime.Device:
    """The device that runs programs for a target and holds their tensors."""
    return tvm.device(backend_of(target).device_type, 0)
