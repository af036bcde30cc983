# SPDX-License-Identifier: Apache-2.0
"""Facts of a run that nobody has to type, beside those of `doctor`; what is not installed.

Only the standard library is imported, so a bare machine can be told what it lacks.
"""

import contextlib
import hashlib
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def missing() -> list[str]:
    """Packages without which nothing runs."""
    project = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[(.*?)^\]", project, re.M | re.S)
    assert listed is not None
    names = [*re.findall(r'^ *"([\w-]+)[^";]*"', listed[1], re.M), "pytest", "hypothesis"]
    return [name for name in names if version(name) is None]


def version(package: str) -> str | None:
    """The installed version of a package, if it is."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def facts() -> dict[str, Any]:
    """What a figure depends on; None where this machine does not say."""
    changes = _said("git", "status", "--porcelain")
    return {
        "commit": _said("git", "rev-parse", "HEAD"),
        "uncommitted changes": None if changes is None else bool(changes),
        "sources": _digest(),
        "card": _said("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"),
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "nvcc": (re.findall(r"release ([^;]*)", _said("nvcc", "--version") or "") or [None])[0],
        **{package: version(package) for package in ("pytest", "torch")},
    }


def _said(*command: str) -> str | None:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stdout.strip().replace("\n", "; ")  # of several cards, say
    return said if done.returncode == 0 else None


def _digest() -> str:
    """Of the files that are tested, for a copy without git."""
    digest = hashlib.sha256()
    folders = (ROOT / name for name in ("sparsetrain", "tests", "benchmarks"))
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
