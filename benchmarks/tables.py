# SPDX-License-Identifier: Apache-2.0
"""Memory and AUC of tables in half precision and in int8.

    python benchmarks/tables.py                      # five seeds at a million rows, all formats
    python benchmarks/tables.py --seeds 0 --rows 100000 --optimizer rowwise_adagrad

For each seed: synthetic Criteo rows, one encoder, then one training for each format from the same
initial weights, over the same batches, scored on the same test rows. Two controls: `nearest`, the
same kernels in bfloat16 with random bits that are always a half, which is rounding to nearest; and
`begun`, float32 from initial weights that were rounded to bfloat16, which shows how far two runs
drift apart by chance. The uint8 rows, for prediction, are made of the float32 tables after
training; int8 is for formulas that keep a number for each row.

Memory is that of the tables, and what the process gained in resident memory by holding them: taken
in a process of its own, on tables of `--table-rows` rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from tvm import tirx

import sparsetrain as st
from sparsetrain.kernels.table_formats import FOR_PREDICTION, INT8, TABLE_DTYPES, numpy_dtype
from sparsetrain.tables import stored_rows

ARMS = ("float32", "begun", "bfloat16", "float16", "int8", "nearest", FOR_PREDICTION)
STORED = {"begun": "float32", "nearest": "bfloat16"}  # of the arms not named for their dtype
CHUNK = 65_536
LIMIT = 0.001  # what the mean AUC of a format may lose


def main() -> int:
    """Measure, print; return 1 if a format loses more than the limit."""
    options = _options()
    if options.resident:
        print(_resident(options.resident, options.table_rows))
        return 0
    found = {seed: _one_seed(seed, options) for seed in options.seeds}
    memory = {dtype: _resident_apart(dtype, options.table_rows) for dtype in TABLE_DTYPES}
    result = {"auc": found, "resident_bytes_of_a_row": memory, "optimizer": options.optimizer}
    print(json.dumps(result) if options.json else _describe(result))
    rounded = [arm for arm in TABLE_DTYPES if all(arm in scores for scores in found.values())]
    return int(any(_mean_loss(found, arm) > LIMIT for arm in rounded))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arms", choices=ARMS, nargs="+", default=ARMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--test-rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--optimizer", choices=sorted(st.optim.OPTIMIZERS), default="adagrad")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--table-rows", type=int, default=4_000_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--resident", choices=TABLE_DTYPES, help=argparse.SUPPRESS)
    return parser.parse_args()


def _one_seed(seed: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The AUC and the table bytes of each arm."""
    with tempfile.TemporaryDirectory() as folder:
        train, test, ceiling = _data(Path(folder), seed, options)
        encoder = st.data.Encoder.fit(train, min_count=5)
        encoded = {
            name: list(st.data.Dataset(path, encoder).batches(options.batch, seed=order))
            for name, path, order in (("train", train, seed), ("test", test, None))
        }
    found: dict[str, dict[str, float]] = {"ceiling": {"auc": ceiling}}
    for arm in ARMS[:-1]:
        if arm not in ("float32", *options.arms) or (arm == INT8 and not _by_row(options)):
            continue
        trainer = _trained(arm, seed, encoder, encoded["train"], options)
        found[arm] = _scored(trainer, encoded["test"])
        print(f"seed {seed}, {arm}: {found[arm]}", file=sys.stderr)
        if arm == "float32" and FOR_PREDICTION in options.arms:
            found[FOR_PREDICTION] = _scored(trainer.quantized(), encoded["test"])
    return found


def _by_row(options: argparse.Namespace) -> bool:
    slots = st.optim.OPTIMIZERS[options.optimizer](options.lr).formula.slots
    return all(slot.per == "row" for slot in slots)


def _data(folder: Path, seed: int, options: argparse.Namespace) -> tuple[str, str, float]:
    generator = st.data.SyntheticCriteo(seed)
    train, test = (str(folder / f"{name}.parquet") for name in ("train", "test"))
    generator.write(train, options.rows, chunk_rows=CHUNK)
    first = ceil(options.rows / CHUNK)
    truth = generator.write(test, options.test_rows, first_chunk=first, chunk_rows=CHUNK)
    return train, test, truth.auc


def _trained(
    arm: str, seed: int, encoder: Any, batches: list[Any], options: argparse.Namespace
) -> st.Trainer:
    dtype: Any = STORED.get(arm, arm)
    model = st.models.DLRM(
        rows=encoder.rows,
        num_dense=encoder.num_dense,
        names=encoder.columns,
        table_dtype=dtype,
    )
    make: Callable[..., Any] = st.optim.OPTIMIZERS[options.optimizer]
    with _rounding_to_nearest(arm == "nearest"):
        optimizer = make(options.lr, update="sparse")  # the one path that the control rounds in
        trainer = st.Trainer(model, optimizer, seed=seed, encoder=encoder)
        if arm == "begun":
            trainer.load_state_dict({n: _rounded(n, a) for n, a in trainer.state_dict().items()})
        for batch in batches:
            trainer.step(batch)
    return trainer


def _rounded(name: str, array: np.ndarray) -> np.ndarray:
    """A table as bfloat16 holds it, or another array as it is."""
    if not (name.startswith("embeddings.") and name.endswith(".weight")):
        return array
    return array.astype(numpy_dtype("bfloat16")).astype(np.float32)


@contextmanager
def _rounding_to_nearest(wanted: bool) -> Iterator[None]:
    """Let kernels that are made meanwhile round to nearest."""
    drawn = stored_rows.element_bits
    if wanted:
        stored_rows.element_bits = lambda *_: tirx.const(2**31, "uint32")
    try:
        yield
    finally:
        if wanted:
            stored_rows.element_bits = drawn


def _scored(model: Any, batches: list[Any]) -> dict[str, float]:
    scores = model.evaluate(batches)
    return {
        "auc": scores["auc"],
        "logloss": scores["logloss"],
        "table_bytes": model.table_bytes,
    }


def _resident_apart(dtype: str, rows: int) -> float:
    command = [sys.executable, __file__, "--resident", dtype, "--table-rows", str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def _resident(dtype: Any, rows: int) -> float:
    """Bytes of resident memory that a row of width 16 adds."""

    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    small, large = (
        st.models.DLRM(rows=[n], dim=16, table_dtype=dtype, num_dense=13) for n in (1000, rows)
    )
    kept = [small.initialize(0)]
    before = pages()
    kept.append(large.initialize(0))
    return (pages() - before) / rows


def _mean_loss(found: dict[int, Any], arm: str) -> float:
    return float(np.mean([f["float32"]["auc"] - f[arm]["auc"] for f in found.values()]))


def _describe(result: dict[str, Any]) -> str:
    found = result["auc"]
    lines = [f"{result['optimizer']}, seeds {', '.join(map(str, found))}", ""]
    lines.append(f"{'tables':>9} {'AUC':>8} {'lost':>9} {'sd':>8} {'logloss':>8} {'MB':>8}")
    for arm in (arm for arm in ARMS if arm in next(iter(found.values()))):
        lost = [f["float32"]["auc"] - f[arm]["auc"] for f in found.values()]
        auc, logloss, size = (
            np.mean([f[arm][key] for f in found.values()])
            for key in ("auc", "logloss", "table_bytes")
        )
        lines.append(
            f"{arm:>9} {auc:8.5f} {np.mean(lost):+9.5f} {np.std(lost):8.5f} {logloss:8.5f} "
            f"{size / 1e6:8.1f}"
        )
    lines.append(f"best possible AUC {np.mean([f['ceiling']['auc'] for f in found.values()]):.5f}")
    for dtype, size in result["resident_bytes_of_a_row"].items():
        lines.append(f"resident memory of a row of width 16 in {dtype}: {size:.1f} bytes")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
