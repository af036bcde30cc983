# SPDX-License-Identifier: Apache-2.0
"""Loggers for ``Trainer.fit(on_log=...)``: TensorBoard, MLflow, Weights & Biases.

A logger is any function of a line of the log: a dict with ``split`` ("train" or "valid"), ``step``,
``epoch``, and what was measured.
"""

from sparsetrain.system.exports import public_names as _public_names
from sparsetrain.training.loggers.trackers import MLflow as MLflow
from sparsetrain.training.loggers.trackers import TensorBoard as TensorBoard
from sparsetrain.training.loggers.trackers import WandB as WandB

__all__, __dir__ = _public_names(globals())
