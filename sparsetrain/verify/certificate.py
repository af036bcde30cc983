# SPDX-License-Identifier: Apache-2.0
"""The certificate of `sparsetrain verify`: checks, machine, run, data and results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sparsetrain.checkpoint.manifest import FILE
from sparsetrain.errors import CheckpointError, SparsetrainError
from sparsetrain.runtime.machine import describe_machine
from sparsetrain.training.run import checkpoint_in, chosen
from sparsetrain.verify.checks import CHECKS
from sparsetrain.verify.outcome import Outcome
from sparsetrain.verify.subject import Subject

_BLOCK = 1 << 20


def run_checks(
    subject: Subject, names: Iterable[str], inject: bool
) -> Iterator[tuple[str, Outcome]]:
    """Run the named checks, and yield each outcome as soon as it is known.

    A check that raises an error has failed; the remaining checks still run.
    """
    for name in names:
        try:
            yield name, CHECKS[name].run(subject, inject)
        except SparsetrainError as error:
            yield name, Outcome(" ".join(str(error).split()), found=float("inf"), fails=True)


def certificate(
    outcomes: Mapping[str, Outcome], run: Path | None, data: Path | None, injected: Iterable[str]
) -> dict[str, Any]:
    """Return the results, and everything that they depend on, as plain values."""
    files = {"manifest_sha256": run and _manifest(run), "data_sha256": data}
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "run": run and str(run),
        "data": data and str(data),
        **{name: path and _sha256(path) for name, path in files.items()},
        "injected": list(injected),
        "checks": {
            name: {"promise": CHECKS[name].promise, **outcome.to_dict()}
            for name, outcome in outcomes.items()
        },
        "ok": all(outcome.ok for outcome in outcomes.values()),
    }


def _manifest(run: Path) -> Path:
    folder = checkpoint_in(run, chosen(run, "auto"))
    if folder is None:
        raise CheckpointError(f"{run} has no checkpoint")
    return folder / FILE


def _sha256(path: Path) -> str:
    whole = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            whole.update(block)
    return whole.hexdigest()
