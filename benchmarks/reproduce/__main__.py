# SPDX-License-Identifier: Apache-2.0
"""Published figures and ours: the models of a benchmark, by its protocol, on its data.

    python -m benchmarks.reproduce frappe FOLDER --models dcnv2,fm --seeds 5

For click models ``--torch 1`` trains the same models by the same protocol in PyTorch, where that is
installed, with that many seeds. A data set is one file beside this one: `SETTINGS` by model, each
with what was `published`; `SCORES`; `prepare(folder)`, and `train(setting, prepared, seed)`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

DATA_SETS = ("frappe", "amazon_games", "ml100k")


def main() -> None:
    """Train every model with every seed, and print a line for each model as it is done."""
    options = _options()
    data = import_module(f"benchmarks.reproduce.{options.data}")
    prepared = data.prepare(options.folder)
    names = options.models.split(",") if options.models else [*data.SETTINGS]
    titles = [*(f"{name:>18}" for name in data.SCORES), f"{'epochs':>8}{'s':>7}{'rows/s':>10}"]
    print(f"{'model':10}{'by':16}{''.join(titles)}")
    for name in names:
        setting = data.SETTINGS[name]
        told = [f"{setting.published.get(score, ''):>18}" for score in data.SCORES]
        print(f"{name:10}{'published':16}{''.join(told)}")
        ours = partial(data.train, setting, prepared)
        _train(name, "sparsetrain", ours, options.seeds, data.SCORES, options.json)
        if options.torch:
            peer = import_module("benchmarks.reproduce.in_torch")
            theirs = partial(peer.train, data, setting, prepared)
            _train(name, "PyTorch", theirs, options.torch, data.SCORES, options.json)


def _train(
    name: str, by: str, train: Callable[[int], dict[str, Any]], seeds: int, scores: Any, log: bool
) -> None:
    """Train with each seed, and print the means and deviations of the scores."""
    runs = []
    for seed in range(seeds):
        runs.append(train(seed))
        if log:
            print(json.dumps({"model": name, "by": by, "seed": seed, **runs[-1]}), flush=True)
    found = {key: [run[key] for run in runs] for key in runs[0]}
    cells = (f"{np.mean(found[s]):.5f} ±{np.std(found[s]):.5f}" for s in scores)
    epochs, seconds, speed = (np.mean(found[key]) for key in ("epochs", "seconds", "rows_per_s"))
    print(
        f"{'':10}{f'{by} x{len(runs)}':16}{''.join(f'{cell:>18}' for cell in cells)}"
        f"{epochs:8.1f}{seconds:7.0f}{speed:10,.0f}",
        flush=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce", description=__doc__)
    parser.add_argument("data", choices=DATA_SETS)
    parser.add_argument("folder", help="where the files of the data are")
    parser.add_argument("--models", help="some of them, as in lr,fm")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--torch", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each run as well")
    return parser.parse_args()


if __name__ == "__main__":
    main()
