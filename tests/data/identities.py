# SPDX-License-Identifier: Apache-2.0
"""One value, one id: random values in every form and layout, against `tests.identity`.

``python -m tests.data.identities --cases 10000`` runs so many; a test runs some.
"""

import argparse
import random
import tempfile
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from sparsetrain.data import ColumnRule, Dataset, Encoder, Schema, convert_files
from sparsetrain.data.encode.few_rows import encode_few
from sparsetrain.data.read import text_rows
from tests.identity import key_of, kind_of

INTEGERS = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float64", "bool"]
TEXTS = ["string", "large_string", "string_view", "binary", "dictionary"]
TYPES = {"bool": pa.bool_(), "float64": pa.float64()}
KINDS = [None, "whole", "hexadecimal", "text"]


def random_text(rng):
    number = rng.choice([rng.randrange(20), rng.randrange(2**32), rng.randrange(2**65)])
    return rng.choice(
        [
            str(number),
            str(-number),
            f"0{number}",
            f"{number}.0",
            f"{rng.randrange(2**32):08x}",
            f"{rng.randrange(10**8):08}",
            rng.choice(["", "true", "False", "-0", "a", "b", "é", "x y", "1e3", "FFFFFFFF"]),
        ]
    )


def random_integers(rng, dtype, count):
    if dtype == "bool":
        return [rng.random() < 0.5 for _ in range(count)]
    if dtype == "float64":
        return [float(rng.randrange(-(2**33), 2**33)) for _ in range(count)]
    info = np.iinfo(dtype)
    few = [v for v in (-(2**31), -2, -1, 0, 1, 2**31, 2**32 - 1) if info.min <= v <= info.max]
    return [
        rng.choice([rng.choice(few), rng.randint(info.min, info.max), rng.randrange(9)])
        for _ in range(count)
    ]


class Column:
    """Values of one type, as Python has them, and as text that a file may hold."""

    def __init__(self, rng):
        self.dtype = rng.choice([*INTEGERS, *TEXTS * 2])
        count = rng.randrange(1, 40)
        if self.dtype in TEXTS:
            pool = [random_text(rng) for _ in range(rng.randrange(1, 12))]
            self.values = [rng.choice(pool) for _ in range(count)]
        else:
            pool = random_integers(rng, self.dtype, rng.randrange(1, 12))
            self.values = [rng.choice(pool) for _ in range(count)]
        self.values = [None if rng.random() < 0.1 else value for value in self.values]

    @property
    def array(self):
        if self.dtype == "dictionary":
            return pa.array(self.values, pa.string()).dictionary_encode()
        return pa.array(self.values, TYPES.get(self.dtype) or getattr(pa, self.dtype)())

    def keys(self, kind, is_text):
        """Return the key of each value, in a layout that keeps text or not."""
        return [key_of(text_of(v) if is_text else v, kind) for v in self.values]


def text_of(value):
    """Return what a file of text holds for a value."""
    return None if value is None else str(value)


def table_of(column, pieces):
    edges = np.linspace(0, len(column.values), pieces + 1).astype(int)
    array = column.array
    chunks = [array.slice(a, b - a) for a, b in zip(edges, edges[1:], strict=False)]
    return pa.table({"c": pa.chunked_array(chunks, array.type), "y": [0] * len(array)})


def write_text(column, path):
    text = pa.array([text_of(value) for value in column.values], pa.string())
    rows = pa.table({"c": text, "y": [0] * len(text)})
    pyarrow.csv.write_csv(rows, path, pyarrow.csv.WriteOptions(quoting_style="needed"))
    return path


def sources(column, rng, folder):
    """Yield names of layouts, their data, and whether they hold text."""
    is_text = column.dtype in TEXTS
    table = table_of(column, rng.randrange(1, 4))
    yield "arrow", table, is_text
    pq.write_table(table, folder / "c.parquet", row_group_size=rng.randrange(1, 40))
    yield "parquet", folder / "c.parquet", is_text
    yield "text", write_text(column, folder / "c.csv"), True
    if column.dtype not in ("binary", "dictionary"):
        yield (
            "frame",
            pd.DataFrame({"c": column.array.to_pandas(integer_object_nulls=True), "y": 0}),
            is_text,
        )
        yield "dict", {"c": column.values, "y": [0] * len(column.values)}, is_text
        yield "rows", [{"c": value, "y": 0} for value in column.values], is_text


def check(seed, folder):
    """Learn a column from one layout, and encode others of all layouts."""
    rng = random.Random(seed)
    with patch.object(text_rows, "LEAST_BYTES", rng.choice([0, 1 << 24])):  # a kernel reads, or not
        _check(rng, seed, folder)


def _check(rng, seed, folder):
    named, least = rng.choice(KINDS), rng.randrange(1, 3)
    rule = ColumnRule(kind=named)
    schema = Schema("y", categories=("c",), columns={"c": rule} if named else {})
    column = Column(rng)
    name, source, is_text = rng.choice([*sources(column, rng, folder)])
    encoder = learn(source, schema, least, folder, through_files=rng.random() < 0.2)
    if rng.random() < 0.3:
        encoder = Encoder.from_state(*encoder.to_state())
    values = [text_of(v) if is_text else v for v in column.values]
    kind = named or kind_of(values)
    assert encoder.features[0].values.kind == kind, (seed, name)
    counts = Counter(key for key in column.keys(kind, is_text) if known(key, kind))
    numbers = sorted(key for key in counts if isinstance(key, int))
    texts = sorted(key for key in counts if isinstance(key, bytes))
    ranked = sorted((k for k in [*numbers, *texts] if counts[k] >= least), key=lambda k: -counts[k])
    ids = {key: 2 + place for place, key in enumerate(ranked)} | {None: 0}
    for other in (column, Column(rng), Column(rng)):
        for layout, data, is_text in sources(other, rng, folder):
            wanted = [ids.get(key, 1) for key in other.keys(kind, is_text)]
            found = encoder_ids(encoder, data)
            assert found == wanted, (seed, name, layout, kind, other.dtype, other.values)
        for value in other.values[:5]:
            batch = encode_few(encoder, [{"c": value}])
            if batch is not None:
                assert batch.ids.item() == ids.get(key_of(value, kind), 1), (seed, value)


def known(key, kind):
    return key is not None and (kind == "text" or isinstance(key, int))


def learn(source, schema, least, folder, through_files):
    if not (through_files and isinstance(source, Path)):
        return Encoder.fit(source, schema=schema, min_count=least)
    with tempfile.TemporaryDirectory(dir=folder) as out:
        convert_files(source, Path(out) / "out", schema=schema, min_count=least)
        return Encoder.fit(Path(out) / "out")


def encoder_ids(encoder, data):
    batches = Dataset(data, encoder, require_label=False).batches(1000)
    return [id_ for batch in batches for id_ in batch.ids[:, 0].tolist()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        for case in range(given.first, given.first + given.cases):
            check(case, Path(place))
            if case % 500 == 499:
                print(f"{case + 1 - given.first:,} cases", flush=True)  # noqa: T201
