# SPDX-License-Identifier: Apache-2.0
"""Check that a run, killed by SIGKILL between saves and resumed, equals an uninterrupted run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sparsetrain.errors import ResourceError
from sparsetrain.training.load import load
from sparsetrain.training.run import Run
from sparsetrain.verify.child import STEPS, class_name, fit
from sparsetrain.verify.outcome import Outcome, count_other_bits, same_bits
from sparsetrain.verify.subject import Subject, flip_bit_

_POLL, _PATIENCE = 0.002, 120.0  # seconds


def check_killed(subject: Subject, inject: bool) -> Outcome:
    """Kill a training process, resume its run, and compare it with an uninterrupted run."""
    with tempfile.TemporaryDirectory() as name:
        start, run = Path(name, "start"), Path(name, "run")
        whole = subject.trainer()
        whole.save(start)
        status = _kill(subject, start, run)
        resumed = load(run, target="cpu", model=type(subject.model))
        killed_at = resumed.steps
        if inject:
            flip_bit_(resumed)
        fit(resumed, subject.data, Run(run), resume=True)
        fit(whole, subject.data, None)
        others, total = count_other_bits(whole.state_dict(), resumed.state_dict())
    return same_bits(
        f"{total:,} numbers after {whole.steps} steps: uninterrupted, and resumed from step "
        f"{killed_at} of a process ended by signal {-status}",
        others,
        fails=killed_at >= whole.steps or whole.steps != resumed.steps,
    )


def _kill(subject: Subject, start: Path, run: Path) -> int:
    """Start a training process and kill it after its first save; return its exit status."""
    command = [sys.executable, "-m", "sparsetrain.verify.child"]
    arguments = [str(start), str(subject.data.absolute()), str(run), class_name(subject.model)]
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(  # noqa: S603 (a module of this package)
            [*command, *arguments], stdout=subprocess.DEVNULL, stderr=errors
        )
        try:
            due = time.monotonic() + _PATIENCE
            while child.poll() is None and not (run / "LATEST").exists():
                if time.monotonic() > due:
                    raise ResourceError(f"the process did not save within {_PATIENCE:.0f} s")
                time.sleep(_POLL)
        finally:
            child.kill()
            status = child.wait()
        errors.seek(0)
        text = errors.read().decode(errors="replace").strip()
    if status >= 0:
        last = text.splitlines()[-1] if text else f"it did {STEPS} steps before it could be killed"
        raise ResourceError(f"the process ended by itself before it was killed: {last}")
    return status
