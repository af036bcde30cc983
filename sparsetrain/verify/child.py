# SPDX-License-Identifier: Apache-2.0
"""A process that trains and saves often until it is killed."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

from sparsetrain.models import MODELS
from sparsetrain.training.load import load
from sparsetrain.training.run import Run
from sparsetrain.training.trainer import Trainer

STEPS, EVERY = 24, 2


def fit(trainer: Trainer, data: Path, run: Run | None, *, resume: bool = False) -> Trainer:
    """Train to step `STEPS`, or to the last row of a smaller file."""
    trainer.fit(
        str(data),
        batch_size=64,
        progress=None,
        run=run,
        resume=resume,
        stop=lambda: trainer.steps >= STEPS,
    )
    return trainer


def class_name(model: object) -> str:
    """Return the name of a model's class for the command line; "" for a built-in model."""
    cls = type(model)
    return "" if cls in MODELS.values() else f"{cls.__module__}:{cls.__qualname__}"


def main(start: str, data: str, out: str, named: str = "") -> None:
    """Load the trainer saved in `start`, and train it in the run folder `out`."""
    cls = None
    if named:
        sys.path.append(os.getcwd())
        module, _, name = named.partition(":")
        cls = getattr(import_module(module), name)
    trainer = load(start, target="cpu", model=cls)
    fit(trainer, Path(data), Run(out, every=EVERY))


if __name__ == "__main__":
    main(*sys.argv[1:])
