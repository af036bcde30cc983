# SPDX-License-Identifier: Apache-2.0
"""Input files of a run, and its rows for training and scoring.

Validation rows come from a separate file, or are split off TRAIN by share or by time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsetrain.cli.output import note
from sparsetrain.cli.schema import schema_of
from sparsetrain.errors import ConfigError

if TYPE_CHECKING:
    import sparsetrain as st
    from sparsetrain.cli.settings import Settings
    from sparsetrain.cli.settings.schema import DataSettings


@dataclass(frozen=True)
class Files:
    """Input files of a run, and the folder to save it in; None if absent."""

    train: Sequence[Path]
    valid: Path | None = None
    test: Path | None = None
    out: Path | None = None

    def with_defaults(self, stored: Mapping[str, Any]) -> Files:
        """Return these files, with a resumed run's files for roles that are not given."""
        train = self.train or [Path(str(path)) for path in stored.get("train") or ()]
        held_out = {k: Path(str(stored[k])) for k in ("valid", "test") if stored.get(k)}
        valid, test = self.valid or held_out.get("valid"), self.test or held_out.get("test")
        return Files(train, valid, test, self.out)

    def to_dict(self) -> dict[str, Any]:
        """Return absolute paths, for the saved run."""
        held_out = {name: os.path.abspath(path) for name, path in self.held_out.items()}
        return {"train": [os.path.abspath(path) for path in self.train], **held_out}

    @property
    def held_out(self) -> dict[str, str]:
        """Files to score, by name."""
        pairs = {"valid": self.valid, "test": self.test}
        return {name: str(path) for name, path in pairs.items() if path is not None}


@dataclass(frozen=True)
class Rows:
    """Rows of a run, as paths or as sources that read parts of them."""

    train: Any  # training rows
    held_out: dict[str, Any]  # rows to score, by "valid" and "test"
    whole: list[str]  # training files and folders
    files: int  # number of files in `whole`
    schema: st.data.Schema
    learn: Any = None  # rows to fit the encoder on, if not `train`
    interactions: int = 0  # number of training rows of a ranking


def find_rows(settings: Settings, files: Files, inferred: Mapping[str, Any] | None = None) -> Rows:
    """Find the rows of a run, and hold out a part of TRAIN if the settings ask for it.

    `inferred` is the schema that an earlier run inferred; it is used again.
    """
    import sparsetrain as st

    _check_validation(settings, files)
    data, whole = settings.data, [str(path) for path in files.train]
    if data.label is not None and inferred is not None:
        schema = st.data.Schema.from_dict(inferred)
    else:
        schema = schema_of(data, whole)
    if data.label is not None and inferred is None:
        schema = settings.model.completed(schema)
    labels = settings.model.has_labels
    trained = _opened(whole, schema, labels)
    for name, path in files.held_out.items():
        both = trained & _opened(path, schema, labels)
        if both:
            note(f"warning: --{name}: {min(both)} is also a training file; its score means little")
    if data.valid_share is not None:
        split = st.data.split_share(whole, data.valid_share, seed=data.valid_seed, schema=schema)
    elif data.valid_from is not None:
        column = time_column(data, schema, "--valid-from")
        split = st.data.split_time(whole, column, data.valid_from, schema=schema)
    else:
        return Rows(whole, {**files.held_out}, whole, len(trained), schema)
    train, valid = split
    return Rows(train, {"valid": valid, **files.held_out}, whole, len(trained), schema)


def time_column(data: DataSettings, schema: st.data.Schema, option: str) -> str:
    """Return the time column that an option needs."""
    column = data.time_column or schema.time
    if column is None:
        raise ConfigError(f"{option}: set the column with --time-column, or `time` in the schema")
    return column


def _opened(paths: Any, schema: st.data.Schema, labels: bool) -> set[str]:
    """Open files, check that each has labels if needed, and return their real paths."""
    import sparsetrain as st

    source = st.data.open_source(paths, schema)
    if labels:
        st.data.require_labels(source, schema)
    return {os.path.realpath(file) for file in getattr(source, "files", ())}


def _check_validation(settings: Settings, files: Files) -> None:
    """Raise `ConfigError` for two kinds of validation, or none if options need one."""
    data = settings.data
    options = {
        "--valid": files.valid,
        "--valid-share": data.valid_share,
        "--valid-from": data.valid_from,
    }
    used = {name for name, value in options.items() if value is not None}
    if len(used) > 1:
        raise ConfigError(f"{' and '.join(sorted(used))}: use one of them")
    for option, value in (
        ("--patience (train.patience)", settings.train.patience),
        ("--validate-every (train.validate_every)", settings.train.validate_every),
        ("train.reduce_lr", settings.train.reduce_lr),
    ):
        if value is not None and not used:
            raise ConfigError(f"{option} needs validation rows: add {' or '.join(options)}")
    if data.time_column is not None and data.valid_from is None:
        raise ConfigError("data.time_column needs data.valid_from (--valid-from)")
