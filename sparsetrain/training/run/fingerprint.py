# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of data files, by which a resumed run notices changed data.

Of a file its size and a hash of both ends and of blocks between: a parquet footer is at the end
and holds counts and statistics of every row group, so any rewrite shows. A change of single bytes
in the middle of a text file may not. Cost: at most 5 MB read from each file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from sparsetrain.data.read.file_systems import open_file
from sparsetrain.errors import CheckpointError, DataError, first_line

_BLOCK = 1 << 16
_BLOCKS = 64

Print = dict[str, Any]


def fingerprint(files: Sequence[str]) -> list[Print]:
    """Return name, size in bytes and hash of each file, in their order.

    Raises
    ------
    DataError
        If a file cannot be read.
    """
    return [_of_file(path) for path in files]


def require_same(
    saved: Sequence[Mapping[str, Any]],
    now: Sequence[Print],
    used: str = "trained on",
    name: str = "data",
) -> None:
    """Compare what a run began with and what it is given now.

    Parameters
    ----------
    saved, now : sequences of dict
        As `fingerprint` gives them.
    used, name : str
        What the run did with the files, and by which name a change is allowed.

    Raises
    ------
    CheckpointError
        If a file is missing, added or another; names the first.
    """
    way_out = f"give the same files in the same order, or allow changed {name}"
    if len(saved) != len(now):
        raise CheckpointError(f"this run was {used} {len(saved)} files, not {len(now)}: {way_out}")
    for before, after in zip(saved, now, strict=True):
        # Where a file lies may change; what is in it may not.
        if (before.get("bytes"), before.get("sha256")) != (after["bytes"], after["sha256"]):
            raise CheckpointError(
                f"{after['name']} is not the file this run was {used}, which was "
                f"{before.get('name')!s:.200} of {before.get('bytes')!s:.20} bytes: {way_out}"
            )


def _of_file(path: str) -> Print:
    try:
        with open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            whole = hashlib.sha256()
            for start in _starts(size):
                file.seek(start)
                whole.update(file.read(_BLOCK))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {first_line(error)}") from None
    return {"name": os.path.basename(path), "bytes": size, "sha256": whole.hexdigest()}


def _starts(size: int) -> Sequence[int]:
    if size <= _BLOCK * _BLOCKS:
        return range(0, size, _BLOCK)
    return [(size - _BLOCK) * block // (_BLOCKS - 1) for block in range(_BLOCKS)]
