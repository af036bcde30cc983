# SPDX-License-Identifier: Apache-2.0
"""`Model`: an exported folder in Python, with only NumPy and TVM's runtime.

It calls the folder's C library by ctypes. The folder, its parents and the library are checked
before the library is loaded; the library checks the remaining files. Importing this module imports
neither TVM nor Arrow.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sparsetrain.errors import (
    CheckpointError,
    DataError,
    NumericalError,
    ResourceError,
    SparsetrainError,
    shown,
)
from sparsetrain.serving import manifest
from sparsetrain.serving.column import Column, all_missing, as_column, as_seconds
from sparsetrain.system.private_files import NotPrivateError, PrivateFolder, open_private

LIBRARY = "libsparsetrain.so"
LINKED = "libtvm_ffi.so"  # `LIBRARY` loads it
_ERROR_SIZE = 512
_COUNT = ctypes.c_int64
_STRUCT = "QiQQQQ"  # st_column, in native alignment
_ERRORS: dict[int, type[SparsetrainError]] = {
    1: CheckpointError,
    2: DataError,
    3: NumericalError,
    4: ResourceError,
}


class Model:
    """An exported model.

    Threads may share it and take turns. Processes that open the same folder share its memory.

    Parameters
    ----------
    folder : path
        A folder written by `sparsetrain export`. It and its parents must belong to this user or
        root, and nobody else may write them, since its kernels are code. Replace it only as a
        whole: truncating a file in place crashes the process.
    absent : {"error", "null"}
        Whether a column that a request lacks is an error, or counts as missing values.

    Raises
    ------
    CheckpointError
        If the folder is damaged, its version or CPU level does not match, or other users may write
        it.

    Attributes
    ----------
    columns, labels : tuple of str
        Names of input columns; names of predictions. A request has derived columns or their
        sources.
    items : (V, D) float32 or None
        For a model without labels, the vectors of all items, memory-mapped: scores are
        ``predict(columns) @ items.T``.
    folder : Path
        Its absolute path, with symbolic links resolved.
    version : str
        Checksum of the folder's manifest: equal for equal exports.
    written : float
        When the folder was written, in seconds since 1970.

    Examples
    --------
    >>> Model("served").predict({"user": [7, 7], "item": ["x", None]})  # doctest: +SKIP
    array([0.31, 0.07], dtype=float32)
    """

    def __init__(self, folder: str | Path, *, absent: str = "error") -> None:
        self._model, self._absent = ctypes.c_void_p(), absent
        with _opened(folder) as opened:  # opened once, since a link may be moved meanwhile
            folder = opened.path
            self.folder, text = folder, opened.read(manifest.FILE)
            self.version = f"{zlib.crc32(text):08x}"
            self.written = (folder / manifest.FILE).stat().st_mtime
            records = manifest.parse(text, folder)
            self._library = _load(opened, _crcs_of(records))
            self._derived = _read_derived(opened, records)
        error = ctypes.create_string_buffer(_ERROR_SIZE)
        path = os.fsencode(folder)
        _require(self._library.st_open(path, ctypes.byref(self._model), error), error)
        self.labels = tuple(record[1] for record in records if record[0] == "label")
        read = [record[1] for record in records if record[0] == "column"]
        self.width = next(int(record[4]) for record in records if record[0] == "program")
        self.items = None if self.labels else np.load(folder / manifest.ITEMS, mmap_mode="r")
        sources = (source for rule in self._derived.values() for source in rule.sources)
        self.columns = tuple(dict.fromkeys([*read, *sources]))
        self._names = {name: array("b", name.encode() + b"\0") for name in read}
        self._times = manifest.times(records)

    def predict(self, columns: Mapping[str, Any]) -> np.ndarray:
        """Return float32 predictions, (rows,) for one label, (rows, T) for T; see `Predictor`.

        Without labels, return query vectors (rows, D).

        Parameters
        ----------
        columns : mapping from str to array or list
            Numbers, strings, or lists of either; `None` marks a missing value. Unknown names are
            ignored.

        Raises
        ------
        DataError
            If a column is missing or a value is invalid; the message names row and column.
        NumericalError
            If a score is not finite.
        """
        return self.predict_columns(
            {name: as_column(columns[name], name) for name in self.columns if name in columns}
        )

    def predict_columns(self, columns: Mapping[str, Column]) -> np.ndarray:
        """Predict like `predict`, from `Column`s; the model must know each name."""
        if not columns:
            raise DataError(f"column {shown(self.columns[0])} is missing")
        rows = {name: column.rows for name, column in columns.items()}
        if len(set(rows.values())) > 1:
            raise DataError(f"columns differ in length: {rows}")
        count = next(iter(rows.values()), 0)
        if self._absent == "null":
            wanted = (name for name in self.columns if name not in self._derived)
            columns = {name: columns.get(name) or all_missing(count) for name in wanted}
        if self._times:
            columns = {n: as_seconds(c, n) if n in self._times else c for n, c in columns.items()}
        if self._derived:
            from sparsetrain.serving.derived_columns import with_derived  # imports Arrow

            made = with_derived(columns, self._derived)
            columns = {name: column for name, column in made.items() if name in self._names}
        fields: list[int] = []
        for name, column in columns.items():
            fields += _address(self._names[name]), column.kind, *map(_address, column[1:])
        structs = struct.pack(_STRUCT * len(columns), *fields)
        predictions = np.empty((max(count, 1), self.width), np.float32)
        error = ctypes.create_string_buffer(_ERROR_SIZE)
        code = self._library.st_predict(
            self._model, count, structs, len(columns), _address(predictions), error
        )
        _require(code, error)
        return predictions[:, 0] if len(self.labels) == 1 else predictions

    def unseen(self) -> dict[str, int]:
        """Return, by column, how many values so far had no row of their own: rare or never seen."""
        return {
            name: self._library.st_unseen(self._model, at) for at, name in enumerate(self._names)
        }

    def close(self) -> None:
        """Free the model's memory; it cannot be used afterwards."""
        if self._model:
            self._library.st_close(self._model)
            self._model = ctypes.c_void_p()

    def __del__(self) -> None:
        self.close()


def _crcs_of(records: list[list[str]]) -> dict[str, int]:
    """Return the checksums of files that are loaded before the library can check files."""
    found = {record[1]: int(record[3], 16) for record in records if record[0] == "file"}
    lacking = next((name for name in (LIBRARY, LINKED) if name not in found), None)
    if lacking:
        raise CheckpointError(f"the exported model has no {lacking}: export it again")
    return {name: found[name] for name in (LIBRARY, LINKED)}


def _read_derived(folder: PrivateFolder, records: list[list[str]]) -> dict[str, Any]:
    """Return the rules of the derived columns that Python computes."""
    from sparsetrain.serving import derived_columns

    if not any(record[:2] == ["file", derived_columns.FILE] for record in records):
        return {}
    return derived_columns.read_rules(folder.read(derived_columns.FILE))


@contextmanager
def _opened(folder: str | Path) -> Iterator[PrivateFolder]:
    """Open an exported folder that no other user can change, since it is code."""
    try:
        with open_private(folder) as opened:
            yield opened
    except NotPrivateError as error:
        raise CheckpointError(str(error)) from None
    except OSError as error:
        place = error.filename or folder
        raise CheckpointError(f"{place}: no exported model ({error.strerror})") from None


_libraries: dict[int, Any] = {}  # loaded libraries by checksum


def _load(folder: PrivateFolder, crcs: Mapping[str, int]) -> Any:
    """Load a folder's library, with the runtime of an installed TVM, or else of the folder."""
    if crcs[LIBRARY] not in _libraries:
        for name, crc in crcs.items():
            _check_library(folder.path / name, folder.read(name), crc)
        _libraries[crcs[LIBRARY]] = _loaded(str(folder.path / LIBRARY))
    return _libraries[crcs[LIBRARY]]


_KIND = slice(4, 6), slice(18, 20)  # bytes of an ELF header: class and byte order; processor


def _check_library(path: Path, content: bytes, crc: int) -> None:
    if zlib.crc32(content) != crc:
        raise CheckpointError(f"{path}: the file is damaged: copy the folder again")
    own = content
    with suppress(OSError), open("/proc/self/exe", "rb") as running:
        own = running.read(20)
    if any(content[part] != own[part] for part in _KIND):
        raise CheckpointError(
            f"{path}: it was exported on a different kind of processor than this "
            f"{platform.machine()}: export it on the same kind"
        )


def _loaded(path: str) -> Any:
    # A process has one TVM runtime; a later import of TVM must find the same.
    for package, name in (("tvm_ffi", "libtvm_ffi.so"), ("tvm", "libtvm_runtime.so")):
        spec = find_spec(package)
        if spec and spec.origin:
            if "tvm" not in sys.modules:  # after an import, the number of threads is already set
                os.environ.setdefault("TVM_NUM_THREADS", "1")
            ctypes.CDLL(str(Path(spec.origin).with_name("lib") / name), ctypes.RTLD_GLOBAL)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error}") from None
    library.st_open.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_char_p]
    library.st_predict.argtypes = [
        *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int),
        *(ctypes.c_void_p, ctypes.c_char_p),
    ]
    library.st_unseen.argtypes, library.st_unseen.restype = [ctypes.c_void_p, ctypes.c_int], _COUNT
    library.st_close.argtypes = [ctypes.c_void_p]
    return library


def _require(code: int, error: Any) -> None:
    if code:
        raise _ERRORS[code](error.value.decode(errors="replace"))


def _address(memory: Any) -> int:
    if memory is None:
        return 0
    if isinstance(memory, array):
        return memory.buffer_info()[0]
    address: int = memory.__array_interface__["data"][0]
    return address
