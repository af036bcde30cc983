# SPDX-License-Identifier: Apache-2.0
"""Run folders made to hurt whoever loads them, and a process that loads them under watch.

python -m tests.faults.hostile FOLDER...
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sparsetrain.checkpoint import manifest as manifest_module


class Bomb:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch exploded",)


def _step(run: Path) -> Path:
    return next(run.glob("step-*"))


def _forge(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        path = _step(run) / "manifest.json"
        body = json.loads(path.read_text())
        body.pop("crc32")
        change(body)
        body["crc32"] = manifest_module._checksum(body)
        path.write_text(json.dumps(body))

    return damage


def _array(**fields: object) -> Callable[[Path], None]:
    return _forge(lambda body: body["arrays"][0].update(fields))


def _about(*keys: str, value: object) -> Callable[[Path], None]:
    def change(body: dict) -> None:
        place = body["manifest"]
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return _forge(change)


def _text(content: bytes) -> Callable[[Path], None]:
    return lambda run: (_step(run) / "manifest.json").write_bytes(content) and None


def _pickle(run: Path) -> None:
    array = np.array([Bomb()], dtype=object)
    with open(_step(run) / "000.npy", "wb") as file:
        np.save(file, array, allow_pickle=True)


def _pickled_manifest(run: Path) -> None:
    (_step(run) / "manifest.json").write_bytes(pickle.dumps(Bomb()))


def _link(name: str, target: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        path = _step(run) / name
        path.unlink()
        path.symlink_to(target)

    return damage


def _pipe(run: Path) -> None:
    (_step(run) / "000.npy").unlink()
    os.mkfifo(_step(run) / "000.npy")


def _pointer(text: str) -> Callable[[Path], None]:
    return lambda run: (run / "LATEST").write_text(text) and None


def _pointer_link(run: Path) -> None:
    (run / "LATEST").unlink()
    (run / "LATEST").symlink_to("/etc/passwd")


def _swap(run: Path) -> None:
    """Give two arrays of one size each other's file."""
    folder = _step(run)
    listed = json.loads((folder / "manifest.json").read_text())["arrays"]
    by_size: dict[int, list[str]] = {}
    for entry in listed:
        by_size.setdefault(entry["bytes"], []).append(entry["file"])
    files = [folder / name for name in max(by_size.values(), key=len)]
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, [*contents[1:], contents[0]], strict=True):
        file.write_bytes(content)


def _library(run: Path) -> None:
    """Hide a shared library behind a model's name."""
    shutil.copy(sys.executable, _step(run) / "lib.so")
    _about("model", "kind", value="./lib.so")(run)


CASES: dict[str, Callable[[Path], None]] = {
    "a path that leads out": _array(file="../../../etc/passwd"),
    "an absolute path": _array(file="/etc/passwd"),
    "a path with a null byte": _array(file="000.npy\0.so"),
    "a pickle as an array": _pickle,
    "a pickle as the manifest": _pickled_manifest,
    "object dtype": _array(dtype="object"),
    "a dtype that is code": _array(dtype="__import__('os').system('touch exploded')"),
    "a huge shape": _array(shape=[2**40, 2**40]),
    "a huge shape with matching bytes": _array(shape=[2**50], rows=[0, 2**50], bytes=2**52 + 128),
    "a huge shape without elements": _array(shape=[0, 2**61]),
    "a negative shape": _array(shape=[-1]),
    "deep lists": _text(b"[" * 200_000),
    "deep objects": _text(b'{"a":' * 200_000),
    "deep but closed": _text(b'{"format":' + b"[" * 900 + b"]" * 900 + b"}"),
    "a long number": _text(b'{"format": ' + b"9" * 100_000 + b"}"),
    "binary": _text(bytes(range(256)) * 100),
    "an array that is a link": _link("000.npy", "/etc/passwd"),
    "a manifest that is a link": _link("manifest.json", "/etc/passwd"),
    "an array that is a device": _link("000.npy", "/dev/zero"),
    "an array that is a pipe": _pipe,
    "a pointer that leads out": _pointer("../../../etc\n"),
    "a pointer to nothing": _pointer("step-000000000000\n"),
    "a pointer that is a link": _pointer_link,
    "a pointer that is binary": _pointer("\0\1\2"),
    "arrays swapped": _swap,
    "a library for a model": _library,
    "a module for a model": _about("model", "kind", value="os.system"),
    "a model of absurd width": _about("model", "config", "bottom", value=[2**40]),
    "a model of absurd depth": _about("model", "config", "top", value=[1] * 1_000),
    "a model of so many layers": _about("model", "config", "top", value=[1] * 50_000),
    "an optimizer of another name": _about("optimizer", value={"name": "eval", "hyper": {}}),
    "a state that is text": _about("run", value="__import__('os')"),
    "a position beyond everything": _about("run", "position", value={"epoch": -1}),
    "an encoder that is a list": _about("encoder", value=[1, 2, 3]),
    "an encoder of another hash": _about("encoder_sha256", value="0" * 64),
}


def snapshot(folder: Path) -> dict[str, str]:
    """Return what lies in a folder, with a hash of each regular file; links are not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = str(path.stat().st_mode)
    return found


_WATCHED = (
    "exec compile import os.system os.exec os.posix_spawn os.fork subprocess.Popen ctypes.dlopen "
    "pickle.find_class marshal.loads socket.connect socket.bind os.rename os.remove os.mkdir "
    "os.rmdir os.truncate"
)


def main(place: Path) -> None:
    """Load every run below `place`; print how many were refused, and forbidden events."""
    import sparsetrain as st
    from sparsetrain.errors import SparsetrainError
    from tests import small_dlrm

    # All that a sound load imports is imported before anything is watched.
    good = place / "good"
    small_dlrm.trainer(encoder=small_dlrm.encoder()).save(good)
    st.load(good)
    runs = [run for run in sorted(place.glob("*/run"))]
    events: list[str] = []
    watched, watching = {*_WATCHED.split()}, [True]

    def audit(event: str, arguments: tuple) -> None:
        if not watching[0]:
            return
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & 3
        if event in watched or writes:
            events.append(f"{event} {arguments!r:.200}")

    sys.addaudithook(audit)
    refused = 0
    for run in runs:
        try:
            st.load(run)
        except SparsetrainError:
            refused += 1
    watching[0] = False
    print(json.dumps({"refused": refused, "events": events}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
