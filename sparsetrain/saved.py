# SPDX-License-Identifier: Apache-2.0
"""A trainer as a folder: what it consists of, in arrays and a manifest, and back.

The manifest names things (a model's kind, an optimizer's name) and holds numbers; nothing in it is
code. How the folder is written and checked is `checkpoint`'s business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from sparsetrain import checkpoint, runtime
from sparsetrain.data import Encoder
from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.fit import State
from sparsetrain.models import MODELS
from sparsetrain.optim import OPTIMIZERS, Optimizer
from sparsetrain.optim.config import from_config, to_config
from sparsetrain.run import checkpoint_in

KIND = "sparsetrain.trainer"
ENCODER = "encoder/"  # prefix of the encoder's arrays among those of the model
_ATTEMPTS = 3
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "pandas", "pyarrow", "scipy")


class Trained(Protocol):
    """What is saved: a `Trainer`, which this file does not know."""

    model: Any
    optimizer: Optimizer
    encoder: Encoder | None
    seed: int
    steps: int
    epochs: int
    accumulate: int
    dense_update: Any
    precision: Any
    state: Any
    target: Any
    _state: State | None

    def _arrays(self) -> dict[str, np.ndarray]: ...

    def _read(self, checkpoint: checkpoint.Saved, names: Collection[str]) -> None: ...


_T = TypeVar("_T", bound=Trained)


def save(trainer: Trained, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
    """Write `trainer`; `extra` is stored beside it, as plain JSON values."""
    checkpoint.write(folder, *snapshot(trainer, extra or {}, None))


def snapshot(
    trainer: Trained, extra: Mapping[str, Any], state: dict[str, Any] | None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays, parameters as views, and the manifest; `state` is that of the run."""
    encoder, encoder_arrays, encoder_hash = _encoder_state(trainer.encoder)
    arrays: dict[str, np.ndarray] = {
        **trainer._arrays(),
        **{ENCODER + name: array for name, array in encoder_arrays.items()},
    }
    described = {
        "kind": KIND,
        "model": {"kind": trainer.model.kind, "config": trainer.model.config()},
        "optimizer": to_config(trainer.optimizer, OPTIMIZERS),
        "encoder": encoder,
        "encoder_sha256": encoder_hash,
        "seed": int(trainer.seed),
        "steps": trainer.steps,
        "epochs": trainer.epochs,
        "accumulate": trainer.accumulate,
        "dense_update": trainer.dense_update,
        "precision": trainer.precision,
        "skipped": trainer.state.skipped,
        "target": str(trainer.target),
        "versions": _versions(),
        "run": state,
        "extra": dict(extra),
    }
    return arrays, described


def load(
    make: Callable[..., _T],
    folder: str | Path,
    *,
    which: str,
    target: Any,
    optimizer: Optimizer | None,
    precision: str | None = None,
) -> _T:
    """Read what `save` wrote into what `make` gives, the `Trainer`; see `sparsetrain.load`."""
    target = runtime.resolve_target(target)
    for attempt in range(_ATTEMPTS):
        path = checkpoint_in(folder, which)
        try:
            with checkpoint.opened(path) as saved:
                return _load(make, saved, path, target, optimizer, precision)
        except CheckpointError:
            # A run that goes on prunes old checkpoints; then its pointer has moved on.
            if attempt == _ATTEMPTS - 1 or checkpoint_in(folder, which) == path:
                raise
    raise AssertionError("the last attempt returns or raises")


def _load(
    make: Callable[..., _T],
    saved: checkpoint.Saved,
    path: Path,
    target: Any,
    optimizer: Optimizer | None,
    precision: str | None,
) -> _T:
    manifest = saved.manifest
    if manifest.get("kind") != KIND:
        raise CheckpointError(f"{path}: holds {manifest.get('kind')!r:.60}, not a saved trainer")
    try:
        return _trainer(make, saved, target, optimizer, precision)
    except CheckpointError as error:
        # Of an array it names the file already.
        raise error if str(path) in str(error) else CheckpointError(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path}: its manifest lacks or garbles {error}") from error
    except ValueError as error:  # our own errors, and those of int()
        raise CheckpointError(f"{path}: {error}") from error


def _trainer(
    make: Callable[..., _T],
    saved: checkpoint.Saved,
    target: Any,
    optimizer: Optimizer | None,
    precision: str | None,
) -> _T:
    manifest = saved.manifest
    encoder_arrays = {
        name.removeprefix(ENCODER): saved.read(name)
        for name in saved.kinds
        if name.startswith(ENCODER)
    }
    encoder = _encoder(manifest["encoder"], encoder_arrays)
    _require_hash(manifest, encoder_arrays)
    model = _model(manifest["model"])
    trainer = make(
        model,
        optimizer or from_config(manifest["optimizer"], OPTIMIZERS),
        target=target,
        seed=int(manifest["seed"]),
        encoder=encoder,
        initialize=False,
        accumulate=manifest.get("accumulate", 1),
        dense_update=manifest.get("dense_update", "apart"),
        precision=precision or manifest.get("precision", "float32"),
    )
    trainer.steps, trainer.epochs = int(manifest["steps"]), int(manifest["epochs"])
    trainer.state.skipped = int(manifest.get("skipped", 0))
    if manifest.get("run") is not None:
        trainer._state = State.from_dict(manifest["run"])
    trainer._read(saved, [name for name in saved.kinds if not name.startswith(ENCODER)])
    return trainer


def _model(saved: Mapping[str, Any]) -> Any:
    if saved["kind"] not in MODELS:
        raise ConfigError(f"model {saved['kind']!r} is unknown; known: {sorted(MODELS)}")
    return MODELS[saved["kind"]](**saved["config"])


def _encoder(saved: Mapping[str, Any] | None, arrays: Mapping[str, np.ndarray]) -> Encoder | None:
    return None if saved is None else Encoder.from_state(saved, arrays)


# An encoder never changes; a run writes it many times.
_STATES: WeakKeyDictionary[Encoder, tuple[Any, dict[str, np.ndarray], str | None]] = (
    WeakKeyDictionary()
)


def _encoder_state(encoder: Encoder | None) -> tuple[Any, dict[str, np.ndarray], str | None]:
    if encoder is None:
        return None, {}, None
    if encoder not in _STATES:
        described, arrays = encoder.to_state()
        _STATES[encoder] = described, dict(arrays), _hash(described, arrays)
    return _STATES[encoder]


def _hash(encoder: Any, arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return a hash of schema and vocabularies, or None without an encoder."""
    if encoder is None:
        return None
    whole = hashlib.sha256(json.dumps(encoder, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        whole.update(f"{name} {array.dtype.str} {array.shape}".encode())
        whole.update(array.reshape(-1).view(np.uint8).data)
    return whole.hexdigest()


def _require_hash(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    stated = manifest.get("encoder_sha256")  # folders of version 0.1 have none
    if stated is not None and stated != _hash(manifest["encoder"], arrays):
        raise CheckpointError("its encoder is not the one that it was trained with")


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in _PACKAGES}
