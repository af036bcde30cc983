# SPDX-License-Identifier: Apache-2.0
"""Everything that a CUDA device can tell of this project, in one command and a given time.

    python -m tests.on_device --minutes 40                 # and prints the page below
    python -m tests.on_device --page runs/on_device.jsonl  # the page of a run, whole or cut off
    python -m tests.on_device --emulated                   # the same without a GPU, figures tiny

Each result is a line of the file as soon as it is there: `doctor`, every test of `tests/cuda`, the
figures of `benchmarks/gpu.py` beside PyTorch's, every other test with "auto" as the GPU. A stage
that fails, hangs or takes its process along ends alone. Nothing needs to be installed but what the
project depends on, pytest and hypothesis, and nvcc with CUDA's runtime; one line says what is not.
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.on_device import lines
from tests.on_device.facts import ROOT, facts, missing
from tests.on_device.page import page, runs
from tests.on_device.stages import Stage, stages

LEAST = 2.0  # seconds: for fewer no process is started
TO_END = 5.0  # seconds to end the last process and print the page


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all stages, print the page; return 1 if anything failed, 2 if nothing can be run."""
    began = time.monotonic()
    options = _options(arguments)
    if options.page:
        print(page(lines.read(options.page)), end="")
        return 0
    if absent := missing():
        needed = f"pip install -c constraints.txt {' '.join(absent)}"
        print(f"on_device: packages are not installed: {needed}", file=sys.stderr)
        return 2
    told = {"emulated": options.emulated, "minutes": options.minutes, "facts": facts()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines.append(options.out, run=told)
    why_not = None
    with contextlib.suppress(KeyboardInterrupt):
        deadline = began + 60 * options.minutes - TO_END
        why_not = run(stages(options.emulated), options.out, deadline, not options.emulated)
    lines.append(options.out, seconds=time.monotonic() - began)
    found = runs(lines.read(options.out))[-1]
    print(page(found), end="")
    if why_not is not None:
        print(f"on_device: {why_not}; --emulated runs without a GPU", file=sys.stderr)
        return 2
    return int(any(line.get("outcome") == "failed" for line in found))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("on_device", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=40, help="after which it has ended")
    parser.add_argument("--out", type=Path, default=Path("runs/on_device.jsonl"), help="gets lines")
    parser.add_argument("--emulated", action="store_true", help="run without a GPU")
    parser.add_argument("--page", type=Path, metavar="FILE", help="print the page of a file alone")
    return parser.parse_args(arguments)


def run(planned: list[Stage], out: Path, deadline: float, on_a_gpu: bool = False) -> str | None:
    """Run stages until `deadline`; return why CUDA cannot be used, if one says so."""
    unusable = None
    for stage in planned:
        left = deadline - time.monotonic()
        why_not = unusable or stage.why_not or ("no time was left" if left < LEAST else None)
        if why_not is not None:
            lines.append(out, stage=stage.name, outcome="not run", reason=why_not)
            continue
        limit = max(LEAST, left * stage.share)
        print(f"{stage.name}: at most {limit:.0f} s", file=sys.stderr, flush=True)
        lines.append(out, stage=stage.name, outcome="begun", limit=limit)
        ended = _run_one(stage, out, limit)
        lines.append(out, stage=stage.name, **ended)
        cuda = (ended["result"] or {}).get("cuda", "")
        if on_a_gpu and cuda.startswith("no: "):  # as `doctor` has it
            unusable = cuda.removeprefix("no: ")
    return unusable


def _run_one(stage: Stage, out: Path, limit: float) -> dict[str, Any]:
    """Return how a stage's process ended, and its result if it prints one."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    ours = {"PYTHONPATH": paths, lines.FILE: str(out.resolve()), lines.STAGE: stage.name}
    # A stage is no worker, even where a worker of pytest-xdist begins it.
    outer = {name: value for name, value in os.environ.items() if "PYTEST_XDIST" not in name}
    began, outcome = time.monotonic(), "done"
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            stage.command,
            cwd=ROOT,
            env={**outer, **ours, **dict(stage.environment)},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=errors,
            start_new_session=True,  # so that what it starts can be ended with it
            preexec_fn=_end_with_parent,
        )
        try:
            outcome = "failed" if process.wait(limit) else "done"
        except subprocess.TimeoutExpired:
            outcome = "out of time"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output, error = (_text(file) for file in (said, errors))
    result = None
    if stage.prints_json:
        with contextlib.suppress(ValueError):
            result = json.loads(output[output.find("{") :])
    ended = {"outcome": outcome, "seconds": time.monotonic() - began, "result": result}
    if outcome == "done":
        return ended
    told = error.strip() or ("" if result else output.strip())
    last = (told.splitlines() or [""])[-1]
    killed = process.returncode < 0 and outcome == "failed"
    reason = f"killed by {signal.Signals(-process.returncode).name}" if killed else last
    return {**ended, "reason": reason, "tail": (output + error)[-4000:]}


def _text(file: Any) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _end_with_parent() -> None:
    """Let Linux kill this process when the one that started it is killed."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends it gets the page
    sys.exit(main())
