# SPDX-License-Identifier: Apache-2.0
"""`dataset.json`: what the converted data are, in one file that people and programs read.

Of every column: the rows of its table, distinct values, missing, rare, negative and bad ones. Of
the whole: rows, clicks, the files with the checksums of their footers, the encoder's fingerprint.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from sparsetrain.data.conversion.learning import Seen, Task
from sparsetrain.data.conversion.passes import Learnt
from sparsetrain.data.conversion.values_file import read_summary
from sparsetrain.data.whole_file import whole_file

QUARANTINE = "_quarantine.jsonl"
_EXAMPLES = 20
_FILE = ("name", "rows", "bytes", "footer")


def describe(
    learnt: Learnt, chunks: Sequence[Seen], files: Sequence[dict[str, Any]], plan: str
) -> dict[str, Any]:
    """Return the contents of `dataset.json`."""
    encoder = learnt.encoder
    bad = _sum(seen.bad for seen in chunks)
    return {
        "format": "sparsetrain.dataset",
        "version": 1,
        "plan": plan,
        "fingerprint": encoder.fingerprint,
        "layout": encoder.layout,
        "schema": encoder.schema.to_dict(),
        "rows": sum(seen.rows for seen in chunks),
        "positive": sum(seen.positive for seen in chunks),
        "bad_rows": sum(bad.values()),
        "bad_rows_by_column": bad,
        "bad_row_examples": list(islice((e for s in chunks for e in s.examples), _EXAMPLES)),
        "dense": _dense(learnt, chunks),
        "categories": _categories(learnt, files),
        "files": [{key: entry[key] for key in _FILE} for entry in files],
    }


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def _dense(learnt: Learnt, chunks: Sequence[Seen]) -> dict[str, dict[str, int]]:
    missing, negative = (_sum(getattr(s, k) for s in chunks) for k in ("missing", "negative"))
    return {
        name: {"missing": missing.get(name, 0), "negative": negative.get(name, 0)}
        for name in learnt.encoder.dense_columns
    }


def _categories(learnt: Learnt, files: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    encoder, share = learnt.encoder, learnt.encoder.share_embedding
    found = {}
    for name, rows, distinct in zip(encoder.columns, encoder.rows, learnt.distinct, strict=True):
        ids, missing, rare = (sum(entry["ids"][name][i] for entry in files) for i in range(3))
        reserved = {} if encoder.encoded else {"missing": missing, "rare": rare}
        counted = {} if distinct is None else {"distinct": distinct}
        whose = {"share_embedding": share[name]} if name in share else {}
        found[name] = {"rows": rows, "ids": ids, **reserved, **counted, **whose}
    return found


def write_bad_rows(path: Path, task: Task, chunks: Sequence[Seen]) -> None:
    """Write one JSON object for each bad row, in the order of the input."""
    with whole_file(path) as file:
        for seen in chunks:
            if not seen.bad:
                continue
            for fault in read_summary(task.result_of(seen.chunk.index))["bad"]:
                file.write(json.dumps(fault, ensure_ascii=False).encode() + b"\n")
