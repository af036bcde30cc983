# SPDX-License-Identifier: Apache-2.0
"""The first fit of a stranger's table: `ClickClassifier()` beside LightGBM, CatBoost and PyTorch.

    python benchmarks/first_minute.py --peer-python peers/bin/python
    python benchmarks/first_minute.py --tables lists,times --rows 200000 --arms warm,lightgbm

Five kinds of tables (`harness/stranger_tables.py`), the same rows for all arms, a fifth of them to
score; of the one by time the last, otherwise at random. Nothing is tuned: `cold` is our first fit
with an empty cache of compiled programs and `warm` a new process after it; `lightgbm` and
`catboost` have their defaults, behind the columns that a user would make of texts, lists and
times; `torch` is a plain loop. Each arm is a process of its own, and is printed as it ends. A peer
that is not installed is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from harness.first_fit import auc
from harness.stranger_tables import KINDS, LABEL, make_table

ROOT = Path(__file__).parent
OURS, PEERS = ("cold", "warm"), ("lightgbm", "catboost", "torch")
ROWS = (20_000, 200_000, 1_000_000)
COLUMNS = ("import_s", "fit_s", "score_s", "auc", "mb")


def main() -> None:
    """Measure each arm on each table, and print it."""
    options = _options()
    if not options.json:
        print("| table | rows | arm | import, s | fit, s | score, s | AUC | MB |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for rows in options.rows:
        for kind in options.tables:
            with tempfile.TemporaryDirectory() as folder:
                _measure(kind, rows, Path(folder), options)


def _measure(kind: str, rows: int, folder: Path, options: argparse.Namespace) -> None:
    table, probability = make_table(kind, rows + rows // 5, options.seed)
    order = np.arange(len(table))
    if kind != "times":
        order = np.random.default_rng(options.seed).permutation(order)
    paths = [str(folder / name) for name in ("train.parquet", "test.parquet")]
    for path, part in zip(paths, (order[:rows], order[rows:]), strict=True):
        pq.write_table(table.take(part), path)
    best = auc(table[LABEL].to_numpy()[order[rows:]], probability[order[rows:]])
    _print(options, {"table": kind, "rows": rows, "arm": "best possible", "auc": best})
    for arm in options.arms:
        found = _run(arm, paths, folder, options)
        if found is not None:
            _print(options, {"table": kind, "rows": rows, "arm": arm, **found})


def _run(arm: str, paths: list[str], folder: Path, options: argparse.Namespace) -> Any:
    """Return the figures of an arm, None if it is not installed."""
    python = sys.executable if arm in OURS else options.peer_python
    if arm in PEERS and not _is_installed(python, arm):
        return None
    worker, cache = "ours" if arm in OURS else arm, str(folder / "cache")
    if arm == "warm" and "cold" not in options.arms:
        _work(python, worker, paths, cache)
    return _work(python, worker, paths, cache)


def _is_installed(python: str, package: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def _work(python: str, arm: str, paths: list[str], cache: str) -> Any:
    # A module, so that its folder, whose `profile.py` torch would import, is not searched first.
    command = [python, "-m", "harness.first_fit", arm, *paths]
    here = os.pathsep.join([str(ROOT), str(ROOT.parent)])
    environ = {**os.environ, "PYTHONPATH": here, "SPARSETRAIN_CACHE": cache}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _print(options: argparse.Namespace, found: dict[str, Any]) -> None:
    if options.json:
        print(json.dumps(found), flush=True)
        return
    formats = {"import_s": ".2f", "fit_s": ".2f", "score_s": ".2f", "auc": ".4f", "mb": ".0f"}
    cells = [f"{found[n]:{formats[n]}}" if n in found else "" for n in COLUMNS]
    head = [found["table"], f"{found['rows']:,}", found["arm"]]
    print(f"| {' | '.join([*head, *cells])} |", flush=True)


def _options() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=names, default=[*KINDS])
    parser.add_argument("--rows", type=lambda text: [*map(int, text.split(","))], default=[*ROWS])
    parser.add_argument("--arms", type=names, default=[*OURS, *PEERS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer-python", default=sys.executable, help="where the peers are")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
