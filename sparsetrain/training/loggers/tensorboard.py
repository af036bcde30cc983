# SPDX-License-Identifier: Apache-2.0
"""Event files of TensorBoard: records of a protocol buffer, whose few fields are encoded here.

A resumed run begins a new file, as TensorBoard expects.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsetrain.training.loggers.trackers import scalars

_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


class TensorBoard:
    """Writes an event file; needs no other package.

    Parameters
    ----------
    folder : path
        Where to make it; ``tensorboard --logdir`` is given this folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("events.out.tfevents.*")))
        path = folder / f"events.out.tfevents.{int(time.time())}.{number:04d}"
        self._file = open(path, "xb")  # noqa: SIM115
        self._write(_bytes(3, b"brain.Event:2"))

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Write the numbers of a log's line."""
        values = b"".join(
            _bytes(1, _bytes(1, name.encode()) + _float(2, value))
            for name, value in scalars(line).items()
        )
        step = _varint(2 << 3) + _varint(int(line["step"]))
        self._write(step + _bytes(5, values))

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        """Add a record: the time, then `event`."""
        event = _varint(1 << 3 | 1) + struct.pack("<d", time.time()) + event
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked(length) + event + _masked(event))
        self._file.flush()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def _masked(data: bytes) -> bytes:
    """Return the CRC-32C of `data`, rotated and offset as the format wants it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
