# SPDX-License-Identifier: Apache-2.0
"""The same array in every form a user may hold it: alignment, strides, byte order, width."""

import numpy as np

LAYOUTS = {
    "4 bytes off a line": lambda a: _shifted(a, 4),
    "1 byte off": lambda a: _shifted(a, 1),
    "every second row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "backwards": lambda a: a[::-1].copy()[::-1],
    "column after column": np.asfortranarray,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "read-only": lambda a: _read_only(a),
    "lists": lambda a: a.tolist(),
    "twice as wide": lambda a: a.astype(np.float64 if a.dtype.kind == "f" else np.uint64),
}


def _shifted(array: np.ndarray, by: int) -> np.ndarray:
    room = np.zeros(array.nbytes + 64 + by, np.uint8)
    start = -room.ctypes.data % 64 + by
    moved = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    assert moved.ctypes.data % 64 == by
    return moved


def _read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy
