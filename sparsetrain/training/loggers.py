# SPDX-License-Identifier: Apache-2.0
"""Loggers for ``Trainer.fit(on_log=...)``: TensorBoard, MLflow, Weights & Biases.

A logger is any function that accepts a line of the log: a dict with ``split`` ("train" or
"valid"), ``step``, ``epoch``, and the measured scores.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from sparsetrain.errors import ConfigError

__all__ = ["MLflow", "TensorBoard", "WandB"]


def __dir__() -> list[str]:
    return __all__


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in a line of the log, by names such as ``train/loss``."""
    return {
        f"{line['split']}/{name}": float(value)
        for name, value in line.items()
        if name not in ("split", "step") and value is not None
    }


class MLflow:
    """Logs to MLflow's active run; if there is none, MLflow starts a run (extra ``mlflow``).

    Parameters
    ----------
    run_id : str, optional
        The run to log to; by default the active run.
    """

    def __init__(self, run_id: str | None = None) -> None:
        self._mlflow, self._run_id = _imported("mlflow"), run_id

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Log the numbers of a line."""
        # MLflow refuses all other characters, such as the @ of ndcg@10.
        named = ((re.sub(r"[^\w/.\- ]", "_", name), n) for name, n in scalars(line).items())
        self._mlflow.log_metrics(dict(named), step=line["step"], run_id=self._run_id)


class TensorBoard:
    """Writes event files (extra ``tensorboard``); a resumed run begins a new file.

    Parameters
    ----------
    folder : path
        Where to write the files; pass it to ``tensorboard --logdir``.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        module = _imported("tensorboardX", "tensorboard")
        self._writer = module.SummaryWriter(os.fspath(folder))

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Write the numbers of a line."""
        for name, value in scalars(line).items():
            self._writer.add_scalar(name, value, int(line["step"]))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WandB:
    """Logs to Weights & Biases (extra ``wandb``).

    Parameters
    ----------
    **options
        Arguments of ``wandb.init``, such as ``project="clicks"``.
    """

    def __init__(self, **options: Any) -> None:
        self._run = _imported("wandb").init(**options)

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Log the numbers of a line."""
        # Two lines may have the same step; with wandb's `step`, they would be merged or dropped.
        self._run.log({"step": line["step"], **scalars(line)})


def _imported(name: str, extra: str | None = None) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f"{name} is not installed: pip install 'sparsetrain[{extra or name}]'"
        ) from None
