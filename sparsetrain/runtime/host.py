# SPDX-License-Identifier: Apache-2.0
"""The target of this machine's CPU, its features that select kernels, and CPU levels.

LLVM names a CPU by its model number, and TVM assumes that the CPU has all instructions of the named
model. In a virtual machine both can be wrong: a hypervisor may report an older model, or hide
instructions. Linux lists the real ones, so missing instructions are added to the target
(``+avx512bf16``), and wrongly implied ones removed (``-avx512f``).

AMX tiles also need the kernel's permission, once per process, before the first use; without it
there is no AMX. With the permission, signal stacks of 8 KB are too small, so it is requested only
if the CPU has tiles.

A level is an instruction set for programs that run on other machines: its name in LLVM, and the
Linux flags of a CPU that supports it. No level includes AMX.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path
from typing import TypeVar

import tvm
from tvm.target import Target
from tvm.target.codegen import llvm_get_cpu_features, target_has_features

from sparsetrain.errors import ConfigError
from sparsetrain.system.cores import is_x86

_CPUINFO = Path("/proc/cpuinfo")
# Linux's flag -> LLVM's feature, for all features that select kernels.
_VECTORS = {
    flag: flag.replace("_", "")
    for flag in (
        *("avx", "f16c", "fma", "avx2", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"),
        *("avx512_vnni", "avx512_bf16"),
    )
}
_TILES = {"amx_tile": "amx-tile", "amx_bf16": "amx-bf16"}
# Removed if missing, never added: LLVM may use them by itself, but no kernel needs them.
_OPTIONAL = {"bmi1": "bmi"} | {
    flag: flag.replace("_", "")
    for flag in (
        *("avx512_fp16", "avx512vbmi", "avx512_vbmi2", "avx512ifma", "avx512_bitalg"),
        *("avx512_vpopcntdq", "avx_vnni", "gfni", "vaes", "vpclmulqdq", "bmi2"),
    )
}
# Every CPU with AVX2 has these; LLVM uses them by itself.
_BASE = {"abm", "cx16", "movbe", "popcnt", "sse4_1", "sse4_2", "ssse3"}
_NO_TILES = ["-amx-tile", "-amx-bf16", "-amx-int8"]
# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of Linux on x86-64, since version 5.16.
_REQUEST_TILES = (158, 0x1023, 18)


@cache
def host_target() -> Target:
    """Return the target of this CPU with its actual instructions; always the same object."""
    named = tvm.target.Target.from_device("cpu")
    flags = _flags()
    if flags is None:
        return named
    implied = set(map(str, llvm_get_cpu_features(named)))
    allowed = flags >= set(_TILES) and _may_use_tiles()
    changes = feature_corrections(implied, flags, tiles_allowed=allowed)
    if not changes:
        return named
    return Target({"kind": "llvm", **dict(named.attrs), "mattr": changes})


def feature_corrections(implied: Set[str], flags: Set[str], *, tiles_allowed: bool) -> list[str]:
    """Return the features to add to a named CPU, ``+x``, and to remove from it, ``-x``.

    `implied` are LLVM's features for the CPU's name, `flags` the processor's flags in Linux.
    """
    present = {feature: flag in flags for flag, feature in _VECTORS.items()}
    present |= {feature: flag in flags and tiles_allowed for flag, feature in _TILES.items()}
    changed = [
        ("+" if has else "-") + feature
        for feature, has in present.items()
        if has != (feature in implied)
    ]
    missing = [f for flag, f in _OPTIONAL.items() if f in implied and flag not in flags]
    return changed + [f"-{feature}" for feature in missing]


def without_forbidden_amx(target: Target) -> Target:
    """Return a user's CPU target, without AMX if this process may not use it."""
    if not target_has_features("amx-tile", target) or _may_use_tiles():
        return target
    return without_amx(target)


def without_amx(target: Target) -> Target:
    """Return a CPU target without AMX, which needs the kernel's permission."""
    changes = [*map(str, target.attrs.get("mattr", ())), *_NO_TILES]
    return Target({"kind": target.kind.name, **dict(target.attrs), "mattr": changes})


def host_flags() -> tuple[str, ...]:
    """Return this CPU's Linux flags for the instructions that its target may use."""
    return tuple(sorted({*_VECTORS, *_OPTIONAL, *_BASE} & (_flags() or set())))


def _flags() -> set[str] | None:
    """Return the flags of the first processor; None if the system does not list them."""
    if not is_x86():
        return None
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return None
    flags = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return next(map(set, flags), None)


@cache
def _may_use_tiles() -> bool:
    """Request AMX from the kernel for this process, its threads and children; True if granted."""
    if sys.platform != "linux" or sys.maxsize <= 2**32:
        return False
    try:
        return ctypes.CDLL(None).syscall(*map(ctypes.c_long, _REQUEST_TILES)) == 0
    except (AttributeError, OSError):
        return False


_BF16_DOT, _AMX_BF16 = "avx512bf16", "amx-bf16"

Choice = TypeVar("Choice")


def has_bf16_dot(target: Target | None) -> bool:
    """Return whether a target is a CPU with AVX512_BF16: rounding, and dot products of pairs."""
    return _has(target, _BF16_DOT)


def has_amx_tiles(target: Target | None) -> bool:
    """Return whether a target is a CPU with AMX for bfloat16, and AVX512_BF16 to round for it."""
    return _has(target, _BF16_DOT, _AMX_BF16)


def select_by_cpu(choices: Mapping[str, Choice], target: Target | None = None) -> Choice:
    """Return the choice for a processor, by a prefix of its name in LLVM.

    Parameters
    ----------
    choices : mapping from str to object
        Prefix -> choice, tried in order; ``""`` comes last and matches every name.
    target : Target, optional
        By default, and if it names no processor, this machine's target.
    """
    targets = [host_target()] if target is None else [target, host_target()]
    name = next(filter(None, (str(each.attrs.get("mcpu", "")) for each in targets)), "")
    return next(choice for start, choice in choices.items() if name.startswith(start))


def _has(target: Target | None, *features: str) -> bool:
    """Return whether a target is a CPU with all of these LLVM features."""
    if target is None or target.kind.name != "llvm":
        return False
    return bool(target_has_features([*features], target))


_V2 = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
LEVELS = {"x86-64-v3": _V3, "x86-64-v4": _V4}


def cpu_level(name: str) -> tuple[Target, tuple[str, ...]]:
    """Return the target of a level, and the Linux flags that a CPU must have.

    Raises
    ------
    ConfigError
        If the name is unknown, or a level of an architecture other than this machine's.
    """
    if name == "native":
        return without_amx(host_target()), host_flags()  # the flags do not include tiles
    if name not in LEVELS:
        raise ConfigError(f"cpu is {name!r}; it must be 'x86-64-v3', 'x86-64-v4' or 'native'")
    if not is_x86():
        raise ConfigError(f"cpu {name!r} is not a level of {platform.machine()}; use 'native'")
    return Target({"kind": "llvm", "mcpu": name}), LEVELS[name]
