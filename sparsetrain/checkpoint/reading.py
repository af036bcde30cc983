# SPDX-License-Identifier: Apache-2.0
"""Read a checkpoint and believe nothing: every byte is checked before anything is returned.

Files are opened relative to the folder's handle, so a save that replaces the folder meanwhile
cannot mix old files with new ones. A read is one pass over the bytes; it holds the arrays, or with
`mmap` one block of 16 MiB.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np

from sparsetrain.checkpoint import places
from sparsetrain.checkpoint.array_file import map_array, read_array
from sparsetrain.checkpoint.manifest import FILE, MAX_BYTES, Entry, parse
from sparsetrain.errors import CheckpointError, ResourceError

_ATTEMPTS = 3  # a save may replace the folder while it is read
_Reader = Callable[[IO[bytes], str, tuple[int, ...]], tuple[np.ndarray, int]]


def read(
    folder: str | PathLike[str], *, mmap: bool = False
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the manifest that `write` was given.

    Parameters
    ----------
    folder : path
        Where the checkpoint was saved.
    mmap : bool
        Map the files instead of reading them into memory; the arrays are read-only.

    Returns
    -------
    arrays : dict of str to ndarray
        In the order in which they were saved, C-contiguous and little-endian.
    manifest : dict
        The caller's part of the manifest.

    Raises
    ------
    CheckpointError
        If there is no checkpoint, or any of its bytes is not what was saved.
    ResourceError
        If memory does not suffice.
    """
    target, reader = places.located(folder), map_array if mmap else read_array
    missing = None
    for _ in range(_ATTEMPTS):
        try:
            with _opened(target) as handle:
                return _read_all(target, handle, reader)
        except FileNotFoundError as error:
            missing = error.filename
        except OSError as error:
            raise CheckpointError(f"{target} cannot be read: {error.strerror}") from None
    if not os.path.lexists(target):
        raise CheckpointError(f"there is no checkpoint at {target}")
    raise CheckpointError(f"{target} is no complete checkpoint: {missing} is missing")


@contextmanager
def _opened(target: Path) -> Iterator[int]:
    """Open the folder, or the one before it if a save stopped between its renames."""
    try:
        handle = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        handle = os.open(places.aside(target), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def _read_all(
    target: Path, handle: int, reader: _Reader
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with _regular_file(target, handle, FILE) as file:
        text = file.read(MAX_BYTES + 1)
    try:
        entries, about = parse(text)
    except ValueError as error:
        raise CheckpointError(f"{target / FILE}: {error}") from None
    return {entry.name: _read_entry(target, handle, entry, reader) for entry in entries}, about


def _read_entry(target: Path, handle: int, entry: Entry, reader: _Reader) -> np.ndarray:
    place = target / entry.file
    with _regular_file(target, handle, entry.file) as file:
        size = os.fstat(file.fileno()).st_size
        if size != entry.bytes:
            raise CheckpointError(
                f"{place} (array {entry.name!r}) has {size} bytes where the manifest says "
                f"{entry.bytes}: the file is cut off or is another"
            )
        try:
            array, crc = reader(file, entry.dtype, entry.shape)
        except ValueError as error:
            raise CheckpointError(f"{place} (array {entry.name!r}): {error}") from None
        except MemoryError:
            raise ResourceError(f"{place} needs {size / 1e9:.2f} GB of memory") from None
    if crc != entry.crc32:
        raise CheckpointError(
            f"{place} (array {entry.name!r}) is damaged: its checksum is {crc:08x} where the "
            f"manifest says {entry.crc32:08x}"
        )
    return array


def _regular_file(target: Path, handle: int, name: str) -> IO[bytes]:
    """Open `name` in the folder; a link, a device or a pipe is refused before it is opened."""
    if not stat.S_ISREG(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
        raise CheckpointError(f"{target / name} is not a regular file")
    return os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=handle), "rb")
