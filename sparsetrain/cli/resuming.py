# SPDX-License-Identifier: Apache-2.0
"""What `train --resume` begins with: the settings and files of the run, and what may differ.

Settings of the run are the lowest layer, so that a resumed run needs no options. Whatever differs
in the end is refused by name, unless it decides nothing about the weights or was allowed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sparsetrain.cli.options import settings_from
from sparsetrain.cli.same_schema import require_same_schema
from sparsetrain.cli.settings import Settings
from sparsetrain.cli.settings.sources import Entry
from sparsetrain.errors import CheckpointError, ConfigError

# Settings that decide when a run ends and what is seen of it, not what is computed.
FREE = frozenset(
    {"train.epochs", "train.checkpoint_every", "train.keep", "train.log_every"}
    | {"train.tensorboard", "train.check_numerics", "data.warn_unseen"}
)
# Setting, or files -> what `Trainer.fit` calls it, where it compares for itself.
_OF_FIT = {
    "data": "data",
    "validation": "validation",
    "train.batch_size": "batch_size",
    "train.shuffle": "shuffle",
    "train.precision": "precision",
    "train.loss_scale": "loss_scale",
    "optimizer.accumulate": "accumulate",
    "train.validate_every": "validate_every",
    "train.monitor": "early_stopping",
    "train.patience": "early_stopping",
}
# Sections that a saved model cannot change.
_BUILT_IN = ("model.", "data.")


class Stored(NamedTuple):
    """What a run was begun with: its settings, and its files as absolute paths by role.

    `schema` is what its schema file said; None without one, and where it was not noted.
    """

    entries: list[Entry]
    files: Mapping[str, Any]
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Resumed:
    """A run that goes on.

    Attributes
    ----------
    folder : Path
    settings : Settings
        That hold now.
    files : dict
        The run's own, absolute paths by role.
    changed : frozenset of str
        Settings that differ from the run's, all of them allowed.
    allowed : frozenset of str
        By the names that `Trainer.fit` knows.
    """

    folder: Path
    settings: Settings
    files: Mapping[str, Any]
    changed: frozenset[str]
    allowed: frozenset[str]


def find_run(resume: str | None, out: Path | None) -> Path | None:
    """Return the folder of the run to resume, or None for a fresh one.

    Raises
    ------
    ConfigError
        If `auto` has no folder to look into, or two folders are named.
    """
    import sparsetrain as st

    if resume is None:
        return None
    if resume == "auto":
        if out is None:
            raise ConfigError("--resume auto: name the run's folder by --out")
        return out if st.Run(out).latest is not None else None
    if out is not None and out.absolute() != Path(resume).absolute():
        raise ConfigError(f"--out {out}: a resumed run stays in its folder, {resume}")
    return Path(resume)


def stored_in(folder: Path) -> Stored:
    """Read what a run was begun with.

    Raises
    ------
    CheckpointError
        If the folder holds no run of the command line.
    """
    import sparsetrain as st

    run = st.Run(folder)
    if run.latest is None and not (folder / "log.jsonl").exists():
        raise CheckpointError(f"{folder} holds no run; `train FILES --out {folder}` begins one")
    extra = run.manifest().get("extra")
    found = extra if isinstance(extra, dict) else {}
    settings, files, schema = (found.get(name) for name in ("settings", "files", "schema"))
    if not isinstance(settings, dict) or not isinstance(files, dict):
        raise CheckpointError(f"{folder} was not written by `train --out`: it has no settings")
    origin = f"the settings of {folder}"
    entries = [Entry(key, value, origin) for key, value in _flat(settings).items()]
    return Stored(entries, files, schema if isinstance(schema, dict) else None)


class Compared(NamedTuple):
    """The settings of a run and those asked for, by ``section.key``, and which of them differ."""

    before: Mapping[str, Any]
    now: Mapping[str, Any]
    changed: frozenset[str]


def compared(entries: Sequence[Entry], settings: Settings) -> Compared:
    """Compare what a run was begun with and what is asked for."""
    # A run of an older version lacks settings.
    before = {**_flat(Settings().to_dict()), **{entry.key: entry.value for entry in entries}}
    now = _flat(settings.to_dict())
    return Compared(before, now, frozenset(key for key in now if now[key] != before[key]))


def resumed(
    folder: Path,
    options: Mapping[str, Any],
    config: Path | None,
    overrides: list[str] | None,
    allow_changed: Sequence[str],
) -> Resumed:
    """Read what the run was begun with and compare it with what is asked for now.

    Raises
    ------
    CheckpointError
        If the folder holds no run, or a setting or what a schema file says differs that is not
        allowed to.
    """
    stored = stored_in(folder)
    settings = settings_from(options, config, overrides, stored.entries)
    before, now, changed = compared(stored.entries, settings)
    changed -= FREE
    if stored.schema is not None:
        # Where the file lies may change; what is in it may not.
        require_same_schema(settings.data.schema_file, stored.schema, folder)
        changed -= {"data.schema_file"}
    _require_allowed(folder, before, now, changed, allow_changed)
    fit = frozenset(_OF_FIT[key] for key in allow_changed if key in _OF_FIT)
    return Resumed(folder, settings, stored.files, changed, fit)


def _require_allowed(
    folder: Path,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    changed: frozenset[str],
    allowed: Sequence[str],
) -> None:
    for name in allowed:
        if name not in _OF_FIT and name not in now:
            raise ConfigError(
                f"--allow-changed {name}: it is 'data', 'validation' or a setting, section.key"
            )
    for key in sorted(changed):
        if key.startswith(_BUILT_IN):
            raise CheckpointError(
                f"{key} is {shown(before[key])} in {folder} and cannot become {shown(now[key])}: "
                "train anew"
            )
        if key not in allowed:
            raise CheckpointError(
                f"{key} is {shown(before[key])} in {folder} and {shown(now[key])} now: give the "
                f"same, or add --allow-changed {key}"
            )


def shown(value: Any) -> str:
    """Return a setting's value for a message."""
    return "not set" if value is None else repr(value)


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by ``section.key``."""
    return {
        f"{section}.{key}": value
        for section, keys in settings.items()
        if isinstance(keys, dict)
        for key, value in keys.items()
    }
