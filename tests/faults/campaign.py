# SPDX-License-Identifier: Apache-2.0
"""Thousands of faults over all commands, counted by what came of them.

A fault is refused (a code from 2 to 6 and one line), or harmless (the result is that without it).
Silent is another result, a crash what is not an error of ours, a hang what takes a minute.

    python -m tests.faults.campaign bits files kills --seed 0
"""

from __future__ import annotations

import argparse
import atexit
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("TVM_NUM_THREADS", "1")  # a forked child has no other

import sparsetrain as st  # noqa: E402
from sparsetrain.errors import SparsetrainError  # noqa: E402
from tests.faults import failing_calls  # noqa: E402
from tests.faults.commands import (  # noqa: E402
    COMMANDS,
    FAULTS,
    FLIPPED,
    FLIPS,
    HANG,
    SHORTER_TEXTS,
    flip,
    outcome_of,
    prepare,
    result,
    run,
)
from tests.helpers import read_checkpoint  # noqa: E402


def files(options: argparse.Namespace, counts: Counter) -> None:
    """Each fault of the table, and flipped bits, in each file that a command reads."""
    rng, (whole, place) = random.Random(options.seed), _prepared()
    for name, (command, read) in COMMANDS.items():
        if options.commands and name not in options.commands:
            continue
        _renew(whole, place)
        code, said = run(command, place)
        assert code == 0, said
        expected = result(place, said)
        for pattern in read:
            flips = {f"flip {n}": flip(rng) for n in range(FLIPS) if pattern in FLIPPED}
            for fault, damage in {**FAULTS, **flips}.items():
                if pattern.endswith(".toml") and fault in SHORTER_TEXTS:
                    continue
                _renew(whole, place)
                damage(next(place.glob(pattern)))
                found, told = outcome_of(command, place, expected)
                counts[found] += 1
                if found not in ("refused", "harmless"):
                    print(f"{name}: {pattern} is {fault}: {found} {told}", flush=True)


@cache
def _prepared() -> tuple[Path, Path]:
    """What `prepare` makes, once for all parts; it goes with this process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    return prepare(folder)


def _renew(whole: Path, place: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(whole, place)


def bits(options: argparse.Namespace, counts: Counter) -> None:
    """Each of the eight bits of every byte of a run's files, given to who loads it."""
    whole, place = _prepared()
    _renew(whole, place)
    expected = _loaded(place / "run")
    for path in sorted(path for path in (place / "run").rglob("*") if path.is_file()):
        if path.name in (".lock", "log.csv"):  # which nothing reads
            continue
        good = path.read_bytes()
        for place_of_bit in range(0, 8 * len(good), options.stride):
            bad = bytearray(good)
            bad[place_of_bit // 8] ^= 1 << place_of_bit % 8
            path.write_bytes(bad)
            try:
                found = "harmless" if _loaded(place / "run") == expected else "silent"
            except SparsetrainError as error:
                found = "crash" if "\n" in str(error) else "refused"
            except Exception as error:
                found = f"crash {type(error).__name__}: {error}"
            counts[found.split()[0]] += 1
            if found not in ("refused", "harmless"):
                print(f"{path.name}, bit {place_of_bit}: {found}", flush=True)
        path.write_bytes(good)


def _loaded(folder: Path) -> Any:
    """All that the files of a run say."""
    run = st.Run(folder)
    log = run.log()
    arrays, manifest = read_checkpoint(run.latest or folder)
    return log, manifest, {name: array.tobytes() for name, array in arrays.items()}


KILLED = ("train", "train --resume", "train --start-from", "predict", "quantize", "convert")


def kills(options: argparse.Namespace, counts: Counter) -> None:
    """SIGKILL at random moments; the same command again must give what it would have given."""
    rng, (whole, place) = random.Random(options.seed), _prepared()
    for name in KILLED:
        command = COMMANDS[name][0] + (" --resume auto" if name == "train" else "")
        _renew(whole, place)
        began = time.monotonic()
        code, said = run(command, place)
        assert code == 0, said
        took, expected = time.monotonic() - began, result(place, said)
        for _ in range(options.kills // len(KILLED) + 1):
            _renew(whole, place)
            if not _killed(command, place, rng.uniform(0, took)):
                continue
            found, told = outcome_of(command, place, expected)
            if "exists already" in told:  # the first one had ended
                found = "harmless"
            counts["harmless" if found == "harmless" else "silent"] += 1
            if found != "harmless":
                print(f"{name}: after a kill {found} {told}", flush=True)


def _killed(command: str, place: Path, seconds: float) -> bool:
    """Kill a child that runs a command after a time. False if it had ended."""
    child = _start(command, place)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def _start(command: str, place: Path, surround: Callable[[], Any] | None = None) -> int:
    """Fork a child that runs a command, and ends with 0 if it was done or refused."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            if surround is not None:
                surround()
            found, told = outcome_of(command, place, None)
            if found not in ("refused", "harmless"):
                os.write(1, f"{command}: {found} {told}\n".encode())
        except BaseException as error:
            found = str(error)
        os._exit(found not in ("refused", "harmless"))
    return child


def _together(*children: int) -> str:
    """Wait for children; whether all were done or refused."""
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return "crash" if any(codes) else "harmless"


def pairs(options: argparse.Namespace, counts: Counter) -> None:
    """Each pair of commands at once in one folder; the run can be loaded afterwards."""
    whole, place = _prepared()
    for both in itertools.combinations_with_replacement(COMMANDS, 2):
        _renew(whole, place)
        counts[_together(*(_start(COMMANDS[name][0], place) for name in both))] += 1
        _loaded(place / "run")


def _nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def _without_home() -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "SPARSETRAIN_CACHE"):
        os.environ.pop(name, None)
    _nobody()


# What a child does before it runs a command, and the mode of the folder.
SURROUNDINGS: dict[str, tuple[Callable[[], Any], int]] = {
    "another user": (_nobody, 0o755),
    "another user who may write": (_nobody, 0o777),
    "another user who may not read": (_nobody, 0o700),
    "no home": (_without_home, 0o777),
    "small files": (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900)), 0o700),
    "no file": (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)), 0o700),
    "few descriptors": (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)), 0o700),
}


def surroundings(options: argparse.Namespace, counts: Counter) -> None:
    """Each command as another user, without a home, with limits of the system."""
    whole, place = _prepared()
    for name, (surround, mode) in SURROUNDINGS.items():
        for command, _ in COMMANDS.values():
            _renew(whole, place)
            place.chmod(mode)
            found = _together(_start(command, place, surround))
            counts[found] += 1
            if found != "harmless":
                print(f"{name}: {command}: {found}", flush=True)


def calls(options: argparse.Namespace, counts: Counter) -> None:
    """The n-th open, write, fsync or rename fails, for all n: see `failing_calls`."""
    for task in failing_calls.TASKS:
        done = failing_calls.run([task], stride=options.stride)
        if done.returncode:
            print(done.stderr[-2000:], flush=True)
            counts["crash"] += 1
        for line in done.stdout.splitlines():
            counts["refused"] += sum(json.loads(line)["failed"].values())


PARTS = {
    **{"bits": bits, "files": files, "calls": calls, "kills": kills},
    **{"pairs": pairs, "surroundings": surroundings},
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--stride", type=int, default=1, help="of bits and of calls: each n-th")
    parser.add_argument("--commands", nargs="*", choices=[*COMMANDS], help="of files; all")
    parser.add_argument("--hang", type=int, default=60, help="seconds that no command takes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    HANG[0] = options.hang
    total = Counter[str]()
    for part in options.parts:
        counts = Counter[str]()
        try:
            PARTS[part](options, counts)
        except KeyboardInterrupt:
            print(f"{part}: interrupted", flush=True)
        total += counts
        print(json.dumps({"part": part, "faults": counts.total(), **counts}), flush=True)
    bad = {found: n for found, n in total.items() if found not in ("refused", "harmless")}
    print(json.dumps({"faults": total.total(), **total}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
