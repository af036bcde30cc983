# SPDX-License-Identifier: Apache-2.0
"""Atomic saving of arrays and a manifest: after a kill, the old or the new save is complete.

Everything is checked before anything is written: names, dtypes, the target, free space. Threads
write and flush the files, the manifest comes last, then the folder is renamed into place. A save
needs extra memory for only a few blocks; for a moment, the disk holds the old and the new save.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from sparsetrain.checkpoint import folders
from sparsetrain.checkpoint.array_file import DTYPES, file_size, in_parallel, write_array
from sparsetrain.checkpoint.manifest import (
    FILE,
    MAX_AXES,
    MAX_FILES,
    Entry,
    all_rows,
    dump,
    piece_shape,
)
from sparsetrain.errors import CheckpointError, ResourceError
from sparsetrain.system.file_locks import name_write_errors

_SLACK = 1 << 20  # bytes for the manifest, folder blocks and rounding
PIECE_BYTES = 256 << 20  # size of a file; several files are written or read at a time

_Piece = tuple[str, tuple[int, int]]  # name of an array, and a range of its rows


def write(
    folder: str | PathLike[str],
    arrays: Mapping[str, np.ndarray],
    manifest: dict[str, Any],
    *,
    piece_bytes: int = PIECE_BYTES,
) -> None:
    """Save `arrays` and `manifest` in `folder`; an existing checkpoint there is replaced.

    Parameters
    ----------
    folder : path
        Where to save; parent folders are created.
    arrays : mapping of str to ndarray
        Booleans, integers or floats, of any shape, layout and byte order.
    manifest : dict
        Values stored beside the arrays: text, numbers, booleans, None, lists, and dicts with text
        keys. Tuples come back as lists.
    piece_bytes : int
        Larger arrays are split by rows into files of about this size.

    Raises
    ------
    CheckpointError
        If an array or the manifest has values of an unsupported type, if `folder` holds anything
        but a checkpoint, or if it cannot be written.
    ResourceError
        If the disk has too little free space.

    Notes
    -----
    Only one process may save to a folder at a time: if two do, one may get an error, and the folder
    stays complete.
    """
    target, checked = folders.located(folder), _checked(arrays)
    pieces = _cut(checked, piece_bytes)
    dump([], manifest)  # refuses an unsuitable manifest before anything is written
    size = sum(file_size(a.dtype.name, a.shape) for a in checked.values())
    with errors_of(target), replacing(target, size) as draft:
        _fill(draft, checked, pieces, manifest)


@contextmanager
def replacing(target: Path, size: int) -> Iterator[Path]:
    """Yield a folder for arrays of `size` bytes; it replaces `target` when the block ends."""
    folders.restore(target)
    folders.require_replaceable(target)
    require_room(target, size)
    target.parent.mkdir(parents=True, exist_ok=True)
    with folders.draft(target) as draft:
        yield draft
        folders.publish(draft, target)


def _fill(
    draft: Path, arrays: dict[str, np.ndarray], pieces: list[_Piece], about: dict[str, Any]
) -> None:
    def write_piece(number: int, piece: _Piece) -> Entry:
        name, rows = piece
        array, file_name = arrays[name], f"{number:03}.npy"
        dtype, shape = array.dtype.name, array.shape
        with folders.new_file(draft / file_name) as file:
            crc = write_array(file, array[slice(*rows)] if shape else array)
        size = file_size(dtype, piece_shape(shape, rows))
        return Entry(name, file_name, dtype, shape, rows, size, crc)

    with in_parallel(sum(array.nbytes for array in arrays.values())) as each:
        entries = list(each(write_piece, range(len(pieces)), pieces))
    with folders.new_file(draft / FILE) as file:
        file.write(dump(entries, about))


def _cut(arrays: dict[str, np.ndarray], piece_bytes: int) -> list[_Piece]:
    pieces: list[_Piece] = []
    for name, array in arrays.items():
        first, end = all_rows(array.shape)
        step = max(1, piece_bytes * end // max(1, array.nbytes)) if array.nbytes else max(1, end)
        starts = range(first, end, step) or (0,)
        pieces += ((name, (start, min(start + step, end))) for start in starts)
    if len(pieces) > MAX_FILES:
        raise CheckpointError(f"{len(pieces)} files are needed, but the limit is {MAX_FILES}")
    return pieces


def _checked(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    checked = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in checked.items():
        if not isinstance(name, str) or not name:
            raise CheckpointError(f"an array has the name {name!r}: names are text")
        if array.dtype.name not in DTYPES or array.ndim > MAX_AXES:
            raise CheckpointError(
                f"array {name!r} is {array.dtype.name} with {array.ndim} axes: "
                "only booleans, integers and floats of at most 64 bits are kept"
            )
    return checked


def require_room(target: Path, size: int) -> None:
    """Raise an error unless the disk has room for a checkpoint of `size` bytes at `target`.

    Raises
    ------
    ResourceError
        If there is too little room; the message gives the needed and the free space.
    """
    needed = _SLACK + size
    existing = next(place for place in (target, *target.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise ResourceError(
            f"{target} needs {needed / 1e6:,.1f} MB, but the disk has {free / 1e6:,.1f} MB free"
        )


def errors_of(target: Path) -> AbstractContextManager[None]:
    """Convert errors of the operating system to package errors that name `target`."""
    return name_write_errors(target, CheckpointError)
