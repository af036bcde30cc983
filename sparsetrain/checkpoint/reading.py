# SPDX-License-Identifier: Apache-2.0
"""Checked reading of a checkpoint: no array is returned before all its bytes are verified.

Files are opened relative to the folder's handle, so a save that replaces the folder meanwhile
cannot mix old and new files. The sizes of all files are checked before the first file is read. A
read is one pass over the bytes, directly into the caller's memory.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import prod
from os import PathLike
from pathlib import Path
from typing import IO, TypeVar

import numpy as np

from sparsetrain.checkpoint import folders
from sparsetrain.checkpoint.array_file import DTYPES, check_array, in_parallel, read_array
from sparsetrain.checkpoint.manifest import FILE, MAX_BYTES, Entry, parse, pieces
from sparsetrain.errors import CheckpointError, ResourceError

_BLOCK = 1 << 20  # bytes read at a time
_ATTEMPTS = 3  # a save may replace the folder while it is read

Found = TypeVar("Found")
Look = Callable[[str, np.ndarray], object]


class Saved:
    """An open checkpoint with a valid manifest and correct file sizes.

    Attributes
    ----------
    manifest : dict
        The caller's values in the manifest.
    kinds : dict of str to (tuple of int, dtype)
        Shape and dtype of each array, in the order in which they were saved.
    """

    def __init__(self, target: Path, handle: int) -> None:
        self._target, self._handle = target, handle
        with _regular_file(target, handle, FILE) as file:
            text = file.read(MAX_BYTES + 1)
        try:
            entries, self.manifest = parse(text)
        except ValueError as error:
            raise CheckpointError(f"{target / FILE}: {error}") from None
        self._pieces = pieces(entries)
        self.kinds = {
            name: (group[0].shape, np.dtype(group[0].dtype)) for name, group in self._pieces.items()
        }
        for entry in entries:
            self._check_size(entry)

    def read(self, name: str) -> np.ndarray:
        """Read an array into new memory.

        Raises
        ------
        CheckpointError
            If any byte of the array has changed since it was saved.
        ResourceError
            If there is not enough memory.
        """
        shape, dtype = self.kinds[name]
        try:
            out = np.empty(shape, DTYPES[dtype.name])
        except MemoryError:
            size = sum(entry.bytes for entry in self._pieces[name])
            raise ResourceError(
                f"{self._target} (array {name!r}) needs {size / 1e9:.2f} GB of memory"
            ) from None
        self.fill({name: out})
        return out

    def fill(self, targets: Mapping[str, np.ndarray]) -> None:
        """Fill arrays that have the saved shapes and dtypes, a few files at a time.

        After an error, the content of the arrays is undefined.

        Raises
        ------
        CheckpointError
            If any byte has changed since it was saved, or an array has an unexpected dtype or
            shape.
        """
        parts = []
        for name, out in targets.items():
            if (out.shape, out.dtype.newbyteorder("=")) != self.kinds[name]:
                raise CheckpointError(
                    f"saved array {name!r} is {self.kinds[name]}, not {(out.shape, out.dtype)}"
                )
            for entry in self._pieces[name]:
                parts.append((entry, out[slice(*entry.rows)] if entry.shape else out))
        with in_parallel(sum(part.nbytes for _, part in parts)) as each:
            for _ in each(lambda part: self._read_piece(*part), parts):
                pass

    def check(self, share: int = 0, of: int = 1, look: Look | None = None) -> None:
        """Verify all files without keeping data, for callers that must not write damaged data.

        Several processes may verify a share each: every `of`-th file, from file `share` on. `look`
        is called with the name of an array and a block of its numbers, possibly from a damaged
        file, so it must not raise an error.

        Raises
        ------
        CheckpointError
            If any byte has changed since it was saved.
        """
        entries = [entry for group in self._pieces.values() for entry in group][share::of]
        with in_parallel(sum(entry.bytes for entry in entries)) as each:
            for _ in each(lambda entry: self._read_piece(entry, look=look), entries):
                pass

    def read_rows(self, name: str, out: np.ndarray, first: int, step: int) -> None:
        """Fill `out` with rows ``first, first + step, ...`` of files that are already checked."""
        for entry in self._pieces[name]:
            dtype, (begin, end) = DTYPES[entry.dtype], entry.rows
            shape = entry.shape[1:]
            row = prod(shape)
            with self._open(entry) as file, self._errors_of(entry):
                file.seek(entry.bytes - (end - begin) * row * dtype.itemsize)
                count = max(1, _BLOCK // (row * dtype.itemsize))
                for at in range(begin, end, count):
                    block = np.fromfile(file, dtype, min(count, end - at) * row)
                    skipped = (first - at) % step
                    rows = block.reshape(-1, *shape)[skipped::step]
                    place = (at + skipped - first) // step
                    out[place : place + len(rows)] = rows

    def _read_piece(
        self, entry: Entry, out: np.ndarray | None = None, look: Look | None = None
    ) -> None:
        """Check a file; if `out` is given, read its rows into it."""
        with self._open(entry) as file, self._errors_of(entry):
            if out is None:
                seen = None if look is None else partial(look, entry.name)
                crc = check_array(file, entry.dtype, entry.piece, seen)
            else:
                crc = read_array(file, entry.dtype, out)
        if crc != entry.crc32:
            raise CheckpointError(
                f"{self._place(entry)} is damaged: its checksum is {crc:08x} where the manifest "
                f"says {entry.crc32:08x}"
            )

    def _open(self, entry: Entry) -> IO[bytes]:
        return _regular_file(self._target, self._handle, entry.file)

    @contextmanager
    def _errors_of(self, entry: Entry) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise CheckpointError(f"{self._place(entry)}: {error}") from None

    def _place(self, entry: Entry) -> str:
        return f"{self._target / entry.file} (array {entry.name!r})"

    def _check_size(self, entry: Entry) -> None:
        size = _status(self._target, self._handle, entry.file).st_size
        if size != entry.bytes:
            raise CheckpointError(
                f"{self._place(entry)} has {size} bytes where the manifest says {entry.bytes}: "
                "the file is cut off or was replaced"
            )


@contextmanager
def opened(folder: str | PathLike[str]) -> Iterator[Saved]:
    """Open a checkpoint; its arrays can be read only inside the block.

    Raises
    ------
    CheckpointError
        If there is no checkpoint, its manifest is invalid, or a file is missing or has the wrong
        size.
    """
    target = folders.located(folder)
    with _reading(target), _open(target) as saved:
        yield saved


def whole(folder: str | PathLike[str], use: Callable[[Saved], Found]) -> Found:
    """Return ``use(checkpoint)``; start again if a save replaces the folder meanwhile.

    Raises
    ------
    CheckpointError
        If there is no checkpoint, its manifest is invalid, or a file is missing or has the wrong
        size.
    """
    target = folders.located(folder)
    with _reading(target):
        for attempt in range(_ATTEMPTS):
            try:
                with _open(target) as saved:
                    return use(saved)
            except FileNotFoundError:
                if attempt == _ATTEMPTS - 1:
                    raise
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def _reading(target: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if not os.path.lexists(target):
            raise CheckpointError(f"there is no checkpoint at {target}") from None
        missing = error.filename
        raise CheckpointError(
            f"{target} is not a complete checkpoint: {missing} is missing"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{target} cannot be read: {error.strerror}") from None


@contextmanager
def _open(target: Path) -> Iterator[Saved]:
    """Open the folder, or the previous checkpoint if a save stopped between its renames."""
    try:
        handle = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        handle = os.open(folders.aside(target), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Saved(target, handle)
    finally:
        os.close(handle)


def _regular_file(target: Path, handle: int, name: str) -> IO[bytes]:
    """Open `name` in the folder; refuse a link, a device or a pipe without opening it."""
    _status(target, handle, name)
    return os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=handle), "rb")


def _status(target: Path, handle: int, name: str) -> os.stat_result:
    status = os.stat(name, dir_fd=handle, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{target / name} is not a regular file")
    return status
