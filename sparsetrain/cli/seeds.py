# SPDX-License-Identifier: Apache-2.0
"""Runs with different seeds: mean and deviation of their scores."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sparsetrain.cli.output import note
from sparsetrain.cli.output_files import require_writable
from sparsetrain.cli.run_training import run_training
from sparsetrain.cli.settings import Settings
from sparsetrain.cli.settings.schema import TrainSettings
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.train_files import Files


def run_seeds(settings: Settings, files: Files, stop: StopSignals, count: int) -> dict[str, Any]:
    """Train with `count` seeds, beginning at `train.seed`; return runs, means and deviations.

    Each run is saved in a subfolder ``seed-N`` of `files.out`.
    """
    runs = []
    if files.out is not None:
        require_writable(files.out)
        files.out.mkdir(parents=True, exist_ok=True)
    for seed in range(settings.train.seed, settings.train.seed + count):
        note(f"seed {seed}")
        train: TrainSettings = settings.train.model_copy(update={"seed": seed})
        own = None if files.out is None else files.out / f"seed-{seed}"
        chosen = settings.model_copy(update={"train": train})
        runs.append(run_training(chosen, replace(files, out=own), stop))
        stop.raise_if_requested()
    return {"runs": runs, **{name: dict(_summary(runs, name)) for name in ("valid", "test")}}


def _summary(runs: list[dict[str, Any]], name: str) -> Iterator[tuple[str, dict[str, float]]]:
    scores = [run[name] for run in runs if run[name]]
    for key, value in scores[0].items() if scores else ():
        found = [score[key] for score in scores]
        if isinstance(value, float) and None not in found:
            yield key, {"mean": statistics.mean(found), "deviation": statistics.stdev(found)}


def describe_seeds(result: dict[str, Any]) -> str:
    """Return the scores of `run_seeds` as text."""
    lines = []
    for name in ("valid", "test"):
        for key, own in result[name].items():
            lines.append(f"{name} {key}: {own['mean']:.5f} ± {own['deviation']:.5f}")
    return "\n".join(lines)
