# SPDX-License-Identifier: Apache-2.0
"""The Arrow file of what was learnt of a chunk: values with their counts, and a summary.

A row of lists, four for each column, ascending, so that a later pass reads one column alone. Those
of a column that looks up the table of another are empty; its values are with that one's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparsetrain.data.encode.counts import ValueCounts
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.whole_file import whole_file

_META = b"chunk"
_PARTS = ("numbers", "number_counts", "texts", "text_counts")


def write_values(path: Path, counts: list[ValueCounts], summary: dict[str, Any]) -> None:
    """Write the values of each column and what else is kept of the chunk, fit for JSON."""
    columns: dict[str, pa.Array] = {}
    for index, count in enumerate(counts):
        numbers, times = count.numbers()
        texts, text_times = count.texts()
        arrays = (numbers, times, pa.array(texts, pa.large_binary()), text_times)
        for part, array in zip(_PARTS, arrays, strict=True):
            columns[f"{index}.{part}"] = _one_list(pa.array(array))
    table = pa.table(columns).replace_schema_metadata({_META: json.dumps(summary)})
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with whole_file(path) as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)


def _one_list(values: pa.Array) -> pa.Array:
    """Return an array whose one value is the list of `values`."""
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)


def read_summary(path: Path) -> dict[str, Any]:
    """Return the summary of a chunk's file."""
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        summary: dict[str, Any] = json.loads(reader.schema.metadata[_META])
        return summary


def read_column(path: Path, index: int) -> tuple[tuple[Array, Array], tuple[pa.Array, Array]]:
    """Return (numbers, counts) and (texts, counts) of one column of a chunk's file."""
    with pa.memory_map(str(path)) as source:
        fields = list(range(4 * index, 4 * index + 4))
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        with pa.ipc.open_file(source, options=options) as reader:
            batch = reader.get_batch(0)
    numbers, times, texts, text_times = (batch.column(i).flatten() for i in range(4))
    return (numbers.to_numpy(), times.to_numpy()), (texts, text_times.to_numpy())
