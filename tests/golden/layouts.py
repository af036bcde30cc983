# SPDX-License-Identifier: Apache-2.0
"""Ids and floats: of every layout of the same rows, and of values of every type.

One encoder reads each layout of `tests.data.criteo_tables`, and each layout teaches an encoder of
its own. Then four columns, learnt from numbers and from three sorts of text, meet the same values
as numbers of every width and as text.
"""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

import sparsetrain as st
from tests.data import criteo_tables

LEARNT = {
    "numbers": pa.array([0, 1, 12, 13, -1, 300, 2**40]),
    "hexadecimal": pa.array(["0000000c", "ffffffff", "deadbeef", "00000012", "0000012c", None]),
    "eight decimal digits": pa.array(["00000012", "12345678", "20261128", "00000300"]),
    "text": pa.array(["12", "-1", "012", "a", "é", "", "1.0", "true", "0"]),
}
_SMALL, _TEXTS = [0, 1, 12, 13], ["12", "012", "12.0", "-1", "0000000c", "00000012", "a", "é", ""]
MET = {
    **{str(t): pa.array(_SMALL, t) for t in (pa.int8(), pa.uint8(), pa.int16(), pa.uint64())},
    **{str(t): pa.array([12, -1, 300], t) for t in (pa.int32(), pa.int64(), pa.float64())},
    "uint32": pa.array([12, 2**32 - 1, 300, 0xDEADBEEF], pa.uint32()),
    "beyond 32 bits": pa.array([2**40, 2**40 + 1, 2**63 - 1, -(2**63)], pa.int64()),
    "bool": pa.array([False, True]),
    **{str(t): pa.array(_TEXTS, t) for t in (pa.string(), pa.large_string(), pa.string_view())},
    "dictionary": pa.array(_TEXTS).dictionary_encode(),
    "null": pa.nulls(2),
}


def found() -> dict[str, Any]:
    """Return ids and floats in clear once, digests of them for every layout, ids of values."""
    rows = criteo_tables.make_rows()
    reader = st.data.Encoder.fit(criteo_tables.table(rows), min_count=3)
    batch = reader.encode(criteo_tables.table(rows))
    return {
        "rows": list(reader.rows),
        "ids": batch.ids.tolist(),
        "dense": [[float(value).hex() for value in row] for row in batch.dense],
        "read": {name: _digest(reader.encode(make(rows))) for name, make in _LAYOUTS.items()},
        "taught": {name: _taught(make(rows)) for name, make in _LAYOUTS.items()},
        "values": {name: _ids_of_values(learnt) for name, learnt in LEARNT.items()},
    }


_LAYOUTS = criteo_tables.LAYOUTS


def _taught(rows: Any) -> str:
    return _digest(st.data.Encoder.fit(rows, min_count=3).encode(rows))


def _digest(batch: st.Batch) -> str:
    arrays = [np.ascontiguousarray(batch.ids, np.int64), batch.dense, batch.labels]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def _ids_of_values(learnt: pa.Array) -> dict[str, list[int]]:
    schema = st.data.Schema(label="y", categories=("value",))
    rows = pa.table({"y": [0.0, 1.0] * (len(learnt) // 2) + [0.0] * (len(learnt) % 2)})
    encoder = st.data.Encoder.fit(
        rows.append_column("value", learnt), schema=schema, min_count=1, treat_as="raw"
    )
    return {
        name: encoder.encode(pa.table({"value": met}), require_label=False).ids[:, 0].tolist()
        for name, met in MET.items()
    }
