# SPDX-License-Identifier: Apache-2.0
"""This machine's CPU as a target, with the instructions it really has.

LLVM names a CPU by its model number, and TVM takes the instructions of that name. In a virtual
machine both can be wrong: a hypervisor may report an older model than it runs on, or hide
instructions the model has. Linux says which there are, so what the name lacks is added to the
target (``+avx512bf16``), what it promises in vain is taken away (``-avx512f``).

AMX tiles also need the kernel's permission, once per process, before the first of them is used; a
process that is refused it has no AMX. With it, signal stacks of 8 KB are too small for the kernel:
it is asked for only where there are tiles.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Set
from functools import cache
from pathlib import Path

import tvm
from tvm.target import Target
from tvm.target.codegen import llvm_get_cpu_features, target_has_features

_CPUINFO = Path("/proc/cpuinfo")
# What Linux calls an instruction set -> what LLVM does: all that decides which kernels there are.
_VECTORS = {
    "avx": "avx",
    "f16c": "f16c",
    "fma": "fma",
    "avx2": "avx2",
    "avx512f": "avx512f",
    "avx512cd": "avx512cd",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
}
_TILES = {"amx_tile": "amx-tile", "amx_bf16": "amx-bf16"}
# Taken away where they are not there, never added: LLVM may use them by itself, no kernel asks.
_BESIDE = {
    "avx512_fp16": "avx512fp16",
    "avx512vbmi": "avx512vbmi",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512ifma": "avx512ifma",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx_vnni": "avxvnni",
    "gfni": "gfni",
    "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq",
    "bmi1": "bmi",
    "bmi2": "bmi2",
}
_NO_TILES = ["-amx-tile", "-amx-bf16", "-amx-int8"]
# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of Linux on x86-64, since version 5.16.
_ASK = (158, 0x1023, 18)


@cache
def host_target() -> Target:
    """This machine's CPU, with the instruction set it really has; always the same object."""
    named = tvm.target.Target.from_device("cpu")
    flags = _flags()
    if flags is None:
        return named
    promised = set(map(str, llvm_get_cpu_features(named)))
    allowed = flags >= set(_TILES) and _may_use_tiles()
    changes = feature_corrections(promised, flags, tiles_allowed=allowed)
    if not changes:
        return named
    return Target({"kind": "llvm", **dict(named.attrs), "mattr": changes})


def feature_corrections(promised: Set[str], flags: Set[str], *, tiles_allowed: bool) -> list[str]:
    """What LLVM must add to a named CPU's features, ``+x``, and take from them, ``-x``.

    Parameters
    ----------
    promised : set of str
        The features of the name, as LLVM calls them.
    flags : set of str
        Those of the processor, as Linux calls them.
    tiles_allowed : bool
        Whether this process may use AMX.
    """
    there = {feature: flag in flags for flag, feature in _VECTORS.items()}
    there |= {feature: flag in flags and tiles_allowed for flag, feature in _TILES.items()}
    changed = [
        ("+" if has else "-") + feature
        for feature, has in there.items()
        if has != (feature in promised)
    ]
    lost = [f for flag, f in _BESIDE.items() if f in promised and flag not in flags]
    return changed + [f"-{feature}" for feature in lost]


def without_forbidden_amx(target: Target) -> Target:
    """A user's CPU target; without its tiles where this process may not use them."""
    if not target_has_features("amx-tile", target) or _may_use_tiles():
        return target
    changes = [*map(str, target.attrs.get("mattr", ())), *_NO_TILES]
    return Target({"kind": target.kind.name, **dict(target.attrs), "mattr": changes})


def _flags() -> set[str] | None:
    """The flags of the first processor, None where nothing tells them."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return None
    found = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return next(map(set, found), None)


@cache
def _may_use_tiles() -> bool:
    """Ask the kernel to let this process, all its threads and children, use AMX."""
    if sys.platform != "linux" or sys.maxsize <= 2**32:
        return False
    try:
        return ctypes.CDLL(None).syscall(*map(ctypes.c_long, _ASK)) == 0
    except (AttributeError, OSError):
        return False
