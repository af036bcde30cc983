# SPDX-License-Identifier: Apache-2.0
"""A trainer as a folder: what it consists of, in arrays and a manifest, and back.

The manifest names things (a model's kind, an optimizer's name) and holds numbers; nothing in it is
code. How the folder is written and checked is `checkpoint`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsetrain import checkpoint, runtime
from sparsetrain.data import Encoder
from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.models import MODELS
from sparsetrain.optim import OPTIMIZERS, Optimizer

if TYPE_CHECKING:
    from sparsetrain.trainer import Trainer

KIND = "sparsetrain.trainer"
ENCODER = "encoder/"  # prefix of the encoder's arrays among those of the model


def save(trainer: Trainer, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
    """Write `trainer`; `extra` is stored beside it, as plain JSON values."""
    manifest, encoder_arrays = trainer.encoder.to_state() if trainer.encoder else (None, {})
    arrays: dict[str, np.ndarray] = {
        **trainer._arrays(),
        **{ENCODER + name: array for name, array in encoder_arrays.items()},
    }
    described = {
        "kind": KIND,
        "model": {"kind": trainer.model.kind, "config": trainer.model.config()},
        "optimizer": {
            "name": trainer.optimizer.formula.name,
            "hyper": {name: float(value) for name, value in trainer.optimizer.hyper.items()},
        },
        "encoder": manifest,
        "seed": int(trainer.seed),
        "steps": trainer.steps,
        "epochs": trainer.epochs,
        "extra": dict(extra or {}),
    }
    checkpoint.write(folder, arrays, described)


def load(folder: str | Path, *, target: Any, optimizer: Optimizer | None) -> Trainer:
    """Read what `save` wrote; see `sparsetrain.load`."""
    target = runtime.resolve_target(target)
    arrays, manifest = checkpoint.read(folder, mmap=True)
    if manifest.get("kind") != KIND:
        raise CheckpointError(f"{folder}: holds {manifest.get('kind')!r}, not a saved trainer")
    try:
        return _trainer(arrays, manifest, target, optimizer)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder}: its manifest lacks or garbles {error}") from error
    except ValueError as error:  # our own errors, and those of int()
        raise CheckpointError(f"{folder}: {error}") from error


def _trainer(
    arrays: Mapping[str, np.ndarray],
    manifest: Mapping[str, Any],
    target: Any,
    optimizer: Optimizer | None,
) -> Trainer:
    from sparsetrain.trainer import Trainer

    trainer = Trainer(
        _model(manifest["model"]),
        optimizer or _optimizer(manifest["optimizer"]),
        target=target,
        seed=int(manifest["seed"]),
        encoder=_encoder(manifest["encoder"], arrays),
    )
    trainer.steps, trainer.epochs = int(manifest["steps"]), int(manifest["epochs"])
    trainer.load_state_dict({n: a for n, a in arrays.items() if not n.startswith(ENCODER)})
    return trainer


def _model(saved: Mapping[str, Any]) -> Any:
    if saved["kind"] not in MODELS:
        raise ConfigError(f"model {saved['kind']!r} is unknown; known: {sorted(MODELS)}")
    return MODELS[saved["kind"]](**saved["config"])


def _optimizer(saved: Mapping[str, Any]) -> Optimizer:
    if saved["name"] not in OPTIMIZERS:
        raise ConfigError(
            f"it was trained by {saved['name']!r}, which this package does not have: "
            "pass load(..., optimizer=...)"
        )
    return OPTIMIZERS[saved["name"]](**saved["hyper"])


def _encoder(saved: Mapping[str, Any] | None, arrays: Mapping[str, np.ndarray]) -> Encoder | None:
    if saved is None:
        return None
    own = {n.removeprefix(ENCODER): a for n, a in arrays.items() if n.startswith(ENCODER)}
    return Encoder.from_state(saved, own)
