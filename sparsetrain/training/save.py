# SPDX-License-Identifier: Apache-2.0
"""Saving of a trainer as a folder of arrays and a manifest.

The manifest names things (a model's kind, an optimizer's name) and holds numbers; nothing in it is
code. The `checkpoint` package writes and checks the folder; `load.py` makes a trainer of it.
What is saved is a `Trainer` or a `QuantizedModel`, which this file does not know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sparsetrain import checkpoint
from sparsetrain.data import Encoder
from sparsetrain.errors import NumericalError
from sparsetrain.optim import OPTIMIZERS
from sparsetrain.optim.config import to_config
from sparsetrain.optim.exact.rows import exact_tables
from sparsetrain.optim.state_dict import ENCODER, describe_nonfinite

KIND = "sparsetrain.trainer"
QUANTIZED = "sparsetrain.quantized"
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "pandas", "pyarrow", "scipy")


def save(trainer: Any, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
    """Write `trainer`; `extra` is stored beside it, as plain JSON values."""
    checkpoint.write(folder, *snapshot(trainer, extra or {}, None))


def snapshot(
    trainer: Any, extra: Mapping[str, Any], state: dict[str, Any] | None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays, parameters as views, and the manifest; `state` is that of the run."""
    arrays, described = _snapshot_of_model(trainer, KIND, extra)
    return arrays, {
        **described,
        "optimizer": to_config(trainer.optimizer, OPTIMIZERS),
        "exact": sorted(chain.from_iterable(exact_tables(trainer.state).values())),
        "seed": int(trainer.seed),
        "accumulate": trainer.accumulate,
        "loss_scale": None if trainer.scaling is None else trainer.scaling.to_dict(),
        "skipped": trainer.state.skipped,
        "run": state,
    }


def snapshot_of_quantized(
    model: Any, extra: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the manifest of a model for prediction."""
    return _snapshot_of_model(model, QUANTIZED, extra)


def _snapshot_of_model(
    model: Any, kind: str, extra: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    encoder, encoder_arrays, its_hash = _encoder_state(model.encoder)
    arrays: dict[str, np.ndarray] = model._arrays()
    require_finite(arrays, model.steps)
    arrays |= {ENCODER + name: array for name, array in encoder_arrays.items()}
    described = {
        "kind": kind,
        "model": {"kind": model.model.kind, "config": model.model.config()},
        "encoder": encoder,
        "encoder_sha256": its_hash,
        "steps": model.steps,
        "epochs": model.epochs,
        "precision": model.precision,
        "target": str(model.target),
        "versions": dict(_versions()),
        "extra": dict(extra),
    }
    return arrays, described


def require_finite(arrays: Mapping[str, np.ndarray], steps: int) -> None:
    """Refuse slots that overflowed: their parameters would stay as they are for ever.

    Raises
    ------
    NumericalError
        Names the first slot or parameter that is not finite.
    """
    found = describe_nonfinite(arrays)
    if found is not None:
        raise NumericalError(f"step {steps:,}: {found}: lower the learning rate")


# An encoder never changes; a run writes it many times.
_STATES: WeakKeyDictionary[Encoder, tuple[Any, dict[str, np.ndarray], str | None]] = (
    WeakKeyDictionary()
)


def _encoder_state(encoder: Encoder | None) -> tuple[Any, dict[str, np.ndarray], str | None]:
    if encoder is None:
        return None, {}, None
    if encoder not in _STATES:
        described, arrays = encoder.to_state()
        _STATES[encoder] = described, dict(arrays), encoder_hash(described, arrays)
    return _STATES[encoder]


def encoder_hash(encoder: Any, arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return a hash of schema and vocabularies, or None without an encoder."""
    if encoder is None:
        return None
    whole = hashlib.sha256(json.dumps(encoder, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        whole.update(f"{name} {array.dtype.str} {array.shape}".encode())
        whole.update(array.reshape(-1).view(np.uint8).data)
    return whole.hexdigest()


@cache
def _versions() -> Mapping[str, str]:
    """Read once: each lies in a file of its package, and a run is saved many times."""
    return {name: metadata.version(name) for name in _PACKAGES}
