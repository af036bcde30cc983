# SPDX-License-Identifier: Apache-2.0
"""An encoder as one file: its arrays as rows of a parquet file, its manifest in the metadata.

The file lies beside the data that was converted with it. Page checksums guard the arrays, a digest
guards the whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.encode.state import fingerprint_of, read_state, write_state
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.whole_file import whole_file
from sparsetrain.errors import CheckpointError, first_line

ENCODER_FILE = "_encoder.parquet"
_KEY = b"sparsetrain.encoder"
_SCHEMA = pa.schema([("name", pa.string()), ("dtype", pa.string()), ("data", pa.large_binary())])
_CHUNK = 1 << 24  # bytes of an array in one row


def write_encoder(path: Path, rules: Rules) -> None:
    """Write an encoder; the file appears whole or not at all."""
    manifest, arrays = write_state(rules)
    described = json.dumps({"manifest": manifest, "fingerprint": fingerprint_of(rules)})
    schema = _SCHEMA.with_metadata({_KEY: described})
    with (
        whole_file(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for name in sorted(arrays):
            for row in _rows(name, arrays[name]):
                writer.write_table(pa.Table.from_pylist([row], schema))


def _rows(name: str, array: Array) -> Iterator[dict[str, Any]]:
    data = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    for start in range(0, max(len(data), 1), _CHUNK):
        part = data[start : start + _CHUNK].tobytes()
        yield {"name": name, "dtype": array.dtype.name, "data": part}


def read_rules(path: Path) -> Rules:
    """Read what `write_encoder` wrote.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or another's.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            described = json.loads(file.schema_arrow.metadata[_KEY])
            rows = file.read().to_pylist()
        arrays = {name: _joined(rows, name) for name in dict.fromkeys(r["name"] for r in rows)}
        rules = read_state(described["manifest"], arrays)
        whole = fingerprint_of(rules) == described["fingerprint"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: no such file; an encoder lies in a folder that `convert` wrote"
        ) from None
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: not a whole encoder file ({first_line(error)})") from None
    if not whole:
        raise CheckpointError(f"{path}: the encoder is damaged; convert the data again")
    return rules


def _joined(rows: list[dict[str, Any]], name: str) -> Array:
    mine = [row for row in rows if row["name"] == name]
    return np.frombuffer(b"".join(row["data"] for row in mine), np.dtype(mine[0]["dtype"]))
