# SPDX-License-Identifier: Apache-2.0
"""Unnamed file of records, which disappears when its process ends.

All space is allocated at the start, so a full disk is an error then, not later. The file is read
and written through the system's file cache, which uses free memory.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.errors import ConfigError, ResourceError
from sparsetrain.runtime.compiling import host_kernel
from sparsetrain.system.file_locks import is_disk_full
from sparsetrain.tables.cache_kernels import ask_kernel, read_kernel

_ask = host_kernel("requests for records", ask_kernel)
_read = host_kernel("reads of records", read_kernel)


class RecordFile:
    """Records (S, W) of float32.

    Parameters
    ----------
    folder : Path
        Created if missing.
    name : str
        Name of the table, for messages.
    slots, width : int
        S and W.

    Raises
    ------
    ConfigError
        If no file can be created there.
    ResourceError
        If the disk is too full.
    """

    def __init__(self, folder: Path, name: str, slots: int, width: int) -> None:
        self._folder, self._name, self._shape = folder, name, (slots, width)
        self._bytes = 4 * width  # of a record
        self._failure: ResourceError | None = None
        size = slots * self._bytes
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # while it lives
            weakref.finalize(self, file.close)
            self._descriptor = file.fileno()
            os.posix_fallocate(self._descriptor, 0, size)
        except OSError as error:
            if is_disk_full(error) or error.errno == errno.EFBIG:
                raise ResourceError(
                    f"tables on disk: {name!r} needs {size / 1e9:,.2f} GB in {folder}, where there "
                    "is less: name a folder on another disk"
                ) from None
            raise ConfigError(
                f"tables on disk: no file can be made in {folder}: {error.strerror}"
            ) from None
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    @cached_property
    def array(self) -> np.ndarray:
        """All records, mapped into memory, for sequential reads and writes."""
        memory = mmap.mmap(self._descriptor, self._shape[0] * self._bytes)
        return np.frombuffer(memory, np.float32).reshape(self._shape)

    def require_whole(self) -> None:
        """Refuse to continue after a failed read or write: the cache is incomplete.

        Raises
        ------
        ResourceError
            The error of the failed read or write.
        """
        if self._failure is not None:
            raise self._failure

    def read(self, slots: np.ndarray) -> np.ndarray:
        """Return the records (N, W) of slots (N,) int32; ascending slots are fastest."""
        wanted, failed = runtime.as_tensor(slots), runtime.zeros((1,), "int32")
        records = runtime.empty((len(slots), self._shape[1]), "float32")
        _ask()(self._descriptor, wanted, self._bytes)
        _read()(self._descriptor, wanted, records, failed)
        with self._errors("read"):
            if runtime.as_numpy(failed)[0]:
                raise OSError
        return runtime.as_numpy(records)

    def read_run(self, first: int, count: int) -> np.ndarray:
        """Return `count` records from a slot on."""
        records = np.empty((count, self._shape[1]), np.float32)
        self._run("read", os.preadv, first, records)
        return records

    def write_run(self, first: int, records: np.ndarray) -> None:
        """Write records (N, W) from a slot on."""
        self._run("written", os.pwritev, first, records)

    def _run(self, verb: str, call: Any, first: int, records: np.ndarray) -> None:
        data, at = records.reshape(-1).view(np.uint8).data, first * self._bytes
        with self._errors(verb):
            while data:
                done = call(self._descriptor, [data], at)
                if not done:
                    raise OSError
                data, at = data[done:], at + done

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._failure = ResourceError(
                f"tables on disk: rows of {self._name!r} cannot be {verb} in {self._folder}: "
                f"{error.strerror or 'the disk fails'}; go on from the last checkpoint"
            )
            raise self._failure from None
