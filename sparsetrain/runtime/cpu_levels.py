# SPDX-License-Identifier: Apache-2.0
"""CPU levels that a program is compiled for when it is to run on other machines.

A level is LLVM's name of it and the flags of Linux that a CPU must list, so that it has the level's
instructions. AMX is in none, since a process must ask the kernel for it.
"""

from __future__ import annotations

from tvm.target import Target

from sparsetrain.errors import ConfigError
from sparsetrain.runtime.host import host_flags, host_target, without_amx

_V2 = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
LEVELS = {"x86-64-v3": _V3, "x86-64-v4": _V4}


def cpu_level(name: str) -> tuple[Target, tuple[str, ...]]:
    """Return the target of a level, and the flags that a CPU must list.

    Raises
    ------
    ConfigError
        If the name is none.
    """
    if name == "native":
        return without_amx(host_target()), host_flags()  # which names no tile
    if name not in LEVELS:
        raise ConfigError(f"cpu is {name!r}; it must be 'x86-64-v3', 'x86-64-v4' or 'native'")
    return Target({"kind": "llvm", "mcpu": name}), LEVELS[name]
