# SPDX-License-Identifier: Apache-2.0
"""Saving of a trainer as a folder of arrays and a manifest.

The manifest holds names (a model's kind, an optimizer's name) and numbers, but no code. The
`checkpoint` package writes and checks the folder; `load.py` makes a trainer from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sparsetrain.data import Encoder
from sparsetrain.optim.arguments import is_known, to_config
from sparsetrain.tables.state_dict import ENCODER, require_finite
from sparsetrain.training.predictor import Predictor

KIND = "sparsetrain.trainer"
QUANTIZED = "sparsetrain.quantized"
MOST_MISSED = 1 << 16  # in steps; Adam's numbers for this many steps take 5 MB
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "pandas", "pyarrow", "scipy")


Saving = tuple[dict[str, np.ndarray], dict[str, Any]]  # arrays as views, and the manifest


@contextmanager
def describe(
    model: Predictor, kind: str, extra: Mapping[str, Any], missed: int = 0
) -> Iterator[Saving]:
    """Yield arrays and manifest of a model, valid in the block; `extra` goes into the manifest.

    Rows may lag by up to `missed` steps.
    """
    encoder, encoder_arrays, its_hash = _encoder_state(model.encoder)
    with model.snapshot(missed=missed) as (arrays, counts):
        require_finite(arrays, model.steps)
        yield (
            arrays | {ENCODER + name: array for name, array in encoder_arrays.items()},
            {
                "kind": kind,
                "model": {"kind": model.model.kind, "config": model.model.config()},
                "encoder": encoder,
                "encoder_sha256": its_hash,
                "precision": model.precision,
                "target": str(model.target),
                "versions": dict(_versions()),
                "extra": dict(extra),
                **counts,
            },
        )


@contextmanager
def describe_trainer(
    trainer: Any, extra: Mapping[str, Any], run: dict[str, Any] | None = None
) -> Iterator[Saving]:
    """Do the same as `describe`, with all that resuming needs; `run` is the run's state.

    Rows that lag by a few steps are saved without catching up, together with the steps they missed,
    if the optimizer can be rebuilt from its configuration to replay these steps.
    """
    optimizer = to_config(trainer.optimizer)
    missed = MOST_MISSED if is_known(optimizer) else 0
    with describe(trainer, KIND, extra, missed) as (arrays, described):
        steps, missing = trainer.params.saved()
        yield (
            arrays | steps,
            {
                **described,
                **missing,
                "optimizer": optimizer,
                "seed": int(trainer.seed),
                "accumulate": trainer.accumulate,
                "run": run,
            },
        )


# Cached, since an encoder never changes, and a run saves its encoder many times.
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
    """Return versions of packages; cached, since each is read from a file."""
    return {name: metadata.version(name) for name in _PACKAGES}
