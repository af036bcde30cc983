# SPDX-License-Identifier: Apache-2.0
"""Published figures and ours: the models of a benchmark, by its protocol, on its data.

    python -m benchmarks.reproduce frappe FOLDER --models dcnv2,fm --seeds 5

Where PyTorch is installed, ``--torch 1`` trains the same models by the same protocol there, with
that many seeds. A data set is one file beside this one, with the names that `frappe` has.
"""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from typing import Any

import numpy as np

DATA_SETS = ("frappe",)


def main() -> None:
    """Train every model with every seed, and print a line for each as it is done."""
    options = _options()
    data = import_module(f"benchmarks.reproduce.{options.data}")
    paths = data.files(options.folder)
    encoder = data.encoder_of(paths)
    names = options.models.split(",") if options.models else [*data.SETTINGS]
    print(f"{'model':8}{'by':13}{'test AUC':>19}{'logloss':>17}{'epochs':>8}{'s':>7}{'rows/s':>10}")
    for name in names:
        setting = data.SETTINGS[name]
        if options.l2 is not None:
            setting = setting._replace(l2=options.l2)
        print(f"{name:8}{'published':13}{setting.auc:10.5f}{'':9}{setting.logloss:8.4f}")
        runs = [data.train(setting, paths, encoder, seed) for seed in range(options.seeds)]
        _print(name, "sparsetrain", runs, options.json)
        if options.torch:
            peer = import_module("benchmarks.reproduce.in_torch")
            found = [peer.train(data, setting, paths, encoder, n) for n in range(options.torch)]
            _print(name, "PyTorch", found, options.json)


def _print(name: str, by: str, runs: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"model": name, "by": by, "runs": runs}), flush=True)
    auc, logloss = ([run[key] for run in runs] for key in ("auc", "logloss"))
    epochs, seconds, speed = (
        np.mean([run[key] for run in runs]) for key in ("epochs", "seconds", "rows_per_s")
    )
    print(
        f"{'':8}{f'{by} x{len(runs)}':13}{np.mean(auc):10.5f} ±{np.std(auc):.5f}"
        f"{np.mean(logloss):8.4f} ±{np.std(logloss):.4f}{epochs:8.1f}{seconds:7.0f}{speed:10,.0f}",
        flush=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce", description=__doc__)
    parser.add_argument("data", choices=DATA_SETS)
    parser.add_argument("folder", help="where the files of the data are")
    parser.add_argument("--models", help="some of them, as in lr,fm")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--torch", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--l2", type=float, help="in place of the protocol's")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each model as well")
    return parser.parse_args()


if __name__ == "__main__":
    main()
