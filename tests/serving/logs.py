# SPDX-License-Identifier: Apache-2.0
"""Two models whose encoders have every rule, and rows for them, odd ones among them."""

from typing import Any

import numpy as np

import sparsetrain as st

SCHEMA = st.data.Schema(
    label="click",
    dense=("age", "price"),
    categories=("user", "site", "hash", "hour"),
    derived={"hour": st.data.Derived("time", divide=3600, modulo=24)},
    linear={"price": st.data.Linear(3.0, 2.0)},
)
BAGS = st.data.Schema(
    labels={"click": "binary", "stay": "real"},
    dense=("age",),
    categories=("user", "seen"),
    columns={
        "seen": st.data.ColumnRule(max_length=3, keep="last", weights="factor"),
    },
    vectors={"taste": 3},
)
ODD_TEXTS = [
    "",
    "deadbeef",
    "DEADBEEF",
    "é\u0000x",
    "v1",
    "x" * 300,
    "deadbee",
    "12345678",
    "-12",
    "012",
    "true",
    None,
]


def rows_of(rows: int, seed: int) -> dict[str, list[Any]]:
    """Columns of both models, with missing and unknown values."""
    rng = np.random.default_rng(seed)

    def some(values: Any) -> list[Any]:
        return [None if rng.random() < 0.1 else value for value in values]

    bags = [rng.integers(0, 30, rng.integers(0, 6)).tolist() for _ in range(rows)]
    texts = [*ODD_TEXTS, *(f"v{n}" for n in range(40)), *(f"{n * 2654435761:08x}" for n in (1, 7))]
    return {
        "age": some(rng.integers(-2, 90, rows).tolist()),
        "price": some(rng.normal(3, 2, rows).tolist()),
        "user": some(rng.integers(-3, 60, rows).tolist()),
        "site": [texts[n] for n in rng.integers(0, len(texts), rows)],
        "hash": some((rng.integers(0, 50, rows) * (2**58 - 1)).tolist()),
        "time": some(rng.integers(-(10**6), 10**9, rows).tolist()),
        "seen": [[f"i{n}" for n in bag] for bag in bags],
        "factor": [[1.0 + n / 8 for n in bag] for bag in bags],
        "click": rng.integers(0, 2, rows).tolist(),
        "stay": rng.normal(0, 1, rows).tolist(),
        "taste": some(rng.normal(0, 1, (rows, 3)).tolist()),
    }


def frame(columns: dict[str, list[Any]], schema: st.data.Schema) -> Any:
    """An Arrow table of what a schema names."""
    import pyarrow as pa

    stored = [name for name in columns if name in schema.wanted]
    return pa.table({name: pa.array(columns[name]) for name in stored})


def trained(schema: st.data.Schema, seed: int = 0) -> st.Trainer:
    """A model with fresh weights, which compiles no training step; its encoder saw 600 rows."""
    data = frame(rows_of(600, seed), schema)
    encoder = st.data.Encoder.fit(
        data, schema=schema, min_count=2, missing_flags=schema is SCHEMA, dense_fill=1.5
    )
    pooling = {"pooling": "sum", "weighted": True} if encoder.has_bags else {}
    model = st.models.DLRM(
        encoder.rows,
        4,
        (8,),
        (8,),
        encoder.num_dense,
        names=encoder.columns,
        labels=encoder.labels,
        **pooling,
    )
    return st.Trainer(model, st.optim.adagrad(0.1), encoder=encoder, seed=seed)


def day_after(trainer: st.Trainer, schema: st.data.Schema) -> st.Trainer:
    """A model that knows newer values, and of whose users some have changed."""
    day = frame(rows_of(60, 77), schema)
    newer = trainer.extended(trainer.encoder.extended(day, min_count=1))
    users = newer.table("user")
    users[::7] += 0.5
    newer.load_table("user", users)
    return newer
