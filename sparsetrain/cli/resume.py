# SPDX-License-Identifier: Apache-2.0
"""Stored settings of runs that `train` continues (`--resume`) or starts from (`--start-from`).

Stored settings have the lowest precedence, so a resumed run needs no options. A setting that still
differs raises an error that names it, unless it does not affect the weights or `--allow-changed`
names it. `--start-from` begins a new run with the weights, slots and encoding of a saved run. A
schema file may be moved between runs, but not changed, since the encoder stores its contents.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparsetrain.cli.options import SettingOptions
from sparsetrain.cli.output import flat
from sparsetrain.cli.settings import Settings
from sparsetrain.cli.settings.resolve import Entry
from sparsetrain.cli.settings.schema import ARITHMETIC
from sparsetrain.errors import CheckpointError, ConfigError

# Settings that a resumed run may change: they affect its end and its log, but not its results.
_FREE = frozenset(
    {"train.epochs", "train.checkpoint_every", "train.keep", "train.log_every"}
    | {"train.tensorboard", "train.check_numerics", "train.shard", "data.warn_unseen", "train.k"}
)
# Settings and files that `Trainer.fit` checks for changes -> their names in `fit`.
_CHECKED_BY_FIT = {
    "data": "data",
    "validation": "validation",
    "train.batch_size": "batch_size",
    "train.shuffle": "shuffle",
    **{f"train.{name}": name for name in ARITHMETIC},
    "train.parts": "parts",
    "optimizer.accumulate": "accumulate",
    "train.validate_every": "validate_every",
    "train.validate_epochs": "validate_epochs",
    "train.monitor": "early_stopping",
    "train.patience": "early_stopping",
    "train.reduce_lr": "reduce_lr",
    "train.reduce_lr_patience": "reduce_lr",
    "train.group_by": "group_by",
}
# Sections with settings that are fixed in a saved model.
_FIXED = ("model.", "data.")
# Settings about the old run's rows or its end, which `--start-from` does not use.
_NOT_TAKEN_OVER = frozenset(
    {"data.valid_share", "data.valid_seed", "data.valid_from", "data.time_column", "data.window"}
    | {"train.patience", "train.validate_every", "train.validate_epochs", "train.monitor"}
    | {"train.reduce_lr", "train.reduce_lr_patience", "train.group_by"}
)
# Data settings that do not affect the encoding of known values.
_OPEN = _NOT_TAKEN_OVER | {"data.min_count", "data.warn_unseen", "data.schema_file"}


class StoredRun(NamedTuple):
    """The arguments that a run was started with."""

    entries: list[Entry]  # its settings
    files: Mapping[str, Any]  # absolute paths by role
    schema: Mapping[str, Any] | None  # contents of its schema file


class EarlierRun(NamedTuple):
    """A run to continue, or to start a new run from.

    Attributes
    ----------
    folder : Path
    settings : Settings
        The settings in effect now.
    changed : frozenset of str
        Settings that differ from the run's.
    files : mapping
        The run's files, absolute paths by role.
    allowed : frozenset of str or None
        `allow_changed` of `Trainer.fit`; None for a run to start from.
    schema : mapping or None
        The contents of its schema file, or the schema that it inferred.
    """

    folder: Path
    settings: Settings
    changed: frozenset[str]
    files: Mapping[str, Any]
    allowed: frozenset[str] | None
    schema: Mapping[str, Any] | None = None

    @property
    def resumes(self) -> bool:
        """Whether the run is continued."""
        return self.allowed is not None


def find_run(resume: str | None, out: Path | None) -> Path | None:
    """Return the folder of the run to resume, or None for a new one."""
    import sparsetrain as st

    if resume is None:
        return None
    if resume == "auto":
        if out is None:
            raise ConfigError("--resume auto: set the run's folder with --out")
        return out if st.Run(out).latest is not None else None
    if out is not None and out.absolute() != Path(resume).absolute():
        raise ConfigError(f"--out {out}: a resumed run stays in its folder, {resume}: remove --out")
    return Path(resume)


def read_run(folder: Path) -> StoredRun:
    """Read the settings and files that a run of the command line was started with."""
    import sparsetrain as st

    run = st.Run(folder)
    if run.latest is None and not (folder / "log.jsonl").exists():
        raise CheckpointError(f"{folder} has no run; `train FILES --out {folder}` starts one")
    extra = run.manifest().get("extra")
    stored = extra if isinstance(extra, dict) else {}
    settings, files, schema = (stored.get(name) for name in ("settings", "files", "schema"))
    if not isinstance(settings, dict) or not isinstance(files, dict):
        raise CheckpointError(f"{folder} was not written by `train --out`: it has no settings")
    origin = f"the settings of {folder}"
    entries = [Entry(key, value, origin) for key, value in _flatten(settings).items()]
    return StoredRun(entries, files, schema if isinstance(schema, dict) else None)


def resume_run(folder: Path, options: SettingOptions, allow_changed: Sequence[str]) -> EarlierRun:
    """Read a run to resume; raise if its schema, or a setting that must not change, has changed."""
    stored = read_run(folder)
    settings = options.resolve(stored.entries)
    before, now, changed = _compare(stored.entries, settings)
    changed -= _FREE
    if stored.schema is not None and settings.data.label is None:
        require_same_schema(settings.data.schema_file, stored.schema, folder)
        changed -= {"data.schema_file"}  # the file may be moved
    for name in allow_changed:
        if name not in _CHECKED_BY_FIT and name not in now:
            raise ConfigError(
                f"--allow-changed {name}: it must be 'data', 'validation' or a setting, section.key"
            )
    for key in sorted(changed):
        if key.startswith(_FIXED):
            raise _fixed_error(folder, key, before, now, "train anew")
        if key not in allow_changed:
            raise CheckpointError(
                f"{key} is {_shown(before[key])} in {folder} and {_shown(now[key])} now: use the "
                f"same value, or add --allow-changed {key}"
            )
    allowed = frozenset(_CHECKED_BY_FIT[key] for key in allow_changed if key in _CHECKED_BY_FIT)
    return EarlierRun(folder, settings, changed, stored.files, allowed, stored.schema)


def start_from_run(folder: Path, options: SettingOptions) -> EarlierRun:
    """Read the run that a new run starts from; raise if a setting changes its arrays' shapes."""
    stored = read_run(folder)
    entries = [entry for entry in stored.entries if entry.key not in _NOT_TAKEN_OVER]
    settings = options.resolve(entries)
    before, now, changed = _compare(entries, settings)
    for key in sorted(changed - _OPEN):
        if key.startswith((*_FIXED, "optimizer.name")):
            raise _fixed_error(folder, key, before, now, "remove it, or train anew")
    return EarlierRun(folder, settings, changed, stored.files, None, stored.schema)


def _compare(
    entries: Iterable[Entry], settings: Settings
) -> tuple[dict[str, Any], dict[str, Any], frozenset[str]]:
    """Return settings by ``section.key``, before and now, and the keys that differ."""
    # `--start-from` drops some entries, which then have their defaults.
    before = {
        **_flatten(type(settings)().to_dict()),
        **{entry.key: entry.value for entry in entries},
    }
    now = _flatten(settings.to_dict())
    return before, now, frozenset(key for key in now if now[key] != before[key])


def _fixed_error(
    folder: Path, key: str, before: Mapping[str, Any], now: Mapping[str, Any], fix: str
) -> CheckpointError:
    return CheckpointError(
        f"{key} is {_shown(before[key])} in {folder} and cannot become {_shown(now[key])}: {fix}"
    )


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)


def _flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by ``section.key``."""
    return {
        f"{section}.{key}": value
        for section, keys in settings.items()
        if isinstance(keys, dict)
        for key, value in keys.items()
    }


def require_same_schema(
    file: str | None, before: Mapping[str, Any], folder: Path, weights: str | None = None
) -> None:
    """Raise `CheckpointError` unless a schema file equals `before`, the schema of the run `folder`.

    No file means the empty schema. The column `weights` replaces the weight column of the file, as
    it did in `before`.
    """
    import sparsetrain as st

    if file is not None and not os.path.exists(file):
        raise ConfigError(
            f"{file}: cannot read the schema: no such file; pass its new path with --schema"
        )
    known = st.data.Schema.from_dict(before)
    now = st.data.Schema.read(file, weights).as_learnt(known).to_dict()
    if now == before:
        return
    named = "no schema file" if file is None else f"--schema {file}"
    raise CheckpointError(
        f"{named}: {folder} was trained with a different schema: {_differences(before, now)}; use "
        "that schema again, or train anew"
    )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    old, new = flat(before), flat(now)  # by names as in a file, such as `linear.price.scale`
    return ", ".join(
        f"{name} was {_as_json(old.get(name))} and is {_as_json(new.get(name))}"
        for name in sorted(old.keys() | new.keys())
        if new.get(name) != old.get(name)
    )


def _as_json(value: Any) -> str:
    return "not set" if value is None else f"{json.dumps(value, ensure_ascii=False):.80}"
