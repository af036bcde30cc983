# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain doctor`: installed versions, the CPU target, and CUDA or why it is missing.

A check that fails is reported in its line, and the remaining checks still run.
"""

import os
import platform
from collections.abc import Callable
from importlib import metadata

import typer

import sparsetrain
from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit
from sparsetrain.cli.processes import measured
from sparsetrain.errors import ResourceError
from sparsetrain.training.progress import format_count

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "pyarrow", "pandas", "scipy", "pydantic")


def doctor(as_json: AsJson = False) -> None:
    """Report versions, CPU features, threads, memory, and CUDA or why it is missing."""
    results: dict[str, str | dict[str, str]] = {}
    broken: list[str] = []
    for name, check in _CHECKS.items():
        try:
            results[name] = check()
        except Exception as error:  # the report shows any error
            results[name] = f"broken: {type(error).__name__}: {' '.join(str(error).split())}"
            broken.append(name)
    text = "\n".join(f"{name + ':':<13}{_line(value)}" for name, value in results.items())
    emit({**results, "ok": not broken}, text, as_json)
    if broken:
        raise typer.Exit(ResourceError.exit_code)


def _line(value: str | dict[str, str]) -> str:
    if isinstance(value, str):
        return value
    return ", ".join(f"{name} {version}" for name, version in value.items())


def _target() -> str:
    from sparsetrain.runtime.host import host_target

    target = host_target()
    known = [str(target.attrs[key]) for key in ("mcpu", "mtriple") if key in target.attrs]
    corrected = " ".join(map(str, target.attrs.get("mattr", ())))
    details = ", ".join([*known, f"in fact {corrected}"] if corrected else known)
    return f"{target.kind.name} ({details})" if details else str(target.kind.name)


def _bfloat16() -> str:
    from sparsetrain.runtime.host import has_amx_tiles, host_target

    target = host_target()
    missing = sparsetrain.precision.lacks("bfloat16", target)
    if missing is not None:
        return f"no: {missing}"
    return f"yes, by {'AMX tiles' if has_amx_tiles(target) else 'AVX512_BF16'}"


def _threads() -> str:
    from sparsetrain.runtime.threads import num_threads
    from sparsetrain.system.cores import available_cores

    cores = available_cores()
    return f"{num_threads()}, on {cores} available cores (TVM_NUM_THREADS sets them)"


def _other_pools() -> str:
    from sparsetrain.system.blas_threads import other_pools

    pools = other_pools()
    if pools is None:
        return "unknown: pip install threadpoolctl lets fit keep BLAS threads from spinning"
    counts = ", ".join(f"{name} {threads}" for name, threads in sorted(pools.items()))
    return f"{counts or 'none'}; fit limits BLAS to 1 thread"


def _memory() -> str:
    page = os.sysconf("SC_PAGE_SIZE") / 2**30
    total = f"{os.sysconf('SC_PHYS_PAGES') * page:.1f} GiB"
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:  # as on macOS
        return total
    return f"{total}, {os.sysconf('SC_AVPHYS_PAGES') * page:.1f} GiB of it free"


def _cache() -> str:
    from sparsetrain.runtime import library_cache

    place = library_cache.locate()
    if isinstance(place, str):
        return f"off: every process compiles anew; {place}"
    sizes = [path.stat().st_size for path in place.glob("*.*") if path.is_file()]
    held = f"{format_count(len(sizes), 'file')}, {sum(sizes) / 2**20:.0f} MiB"
    return f"{place.resolve()} ({held}; SPARSETRAIN_CACHE names another folder)"


def _cuda() -> str:
    from sparsetrain.backend import backends

    backend = backends()["cuda"]
    why_not = backend.unavailable_reason()
    return backend.describe() if why_not is None else f"no: {why_not}"


_CHECKS: dict[str, Callable[[], str | dict[str, str]]] = {
    "sparsetrain": lambda: sparsetrain.__version__,
    "python": lambda: f"{platform.python_version()} on {platform.system()} {platform.machine()}",
    "packages": lambda: {name: metadata.version(name) for name in _PACKAGES},
    "target": _target,
    "bfloat16": _bfloat16,
    "threads": _threads,
    "other pools": _other_pools,
    "memory": _memory,
    "compiled": _cache,
    "cuda": _cuda,
    "processes": measured,
}
