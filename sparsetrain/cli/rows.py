# SPDX-License-Identifier: Apache-2.0
"""Which rows a run trains on and which it is scored on: files of their own, or a part of TRAIN."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparsetrain.cli.output import note
from sparsetrain.errors import ConfigError

if TYPE_CHECKING:
    import sparsetrain as st
    from sparsetrain.cli.files import Files
    from sparsetrain.cli.settings import Settings


@dataclass(frozen=True)
class Rows:
    """What `Trainer` takes: paths, or sources that are halves of them.

    Attributes
    ----------
    train
        Rows to train on.
    held_out : dict
        Rows to be scored, by "valid" and "test".
    whole
        All rows of the training files.
    files : int
        How many these are.
    """

    train: Any
    held_out: dict[str, Any]
    whole: Any
    files: int


def find_rows(settings: Settings, files: Files) -> Rows:
    """Hold out a part of the training files if the settings say so.

    Raises
    ------
    ConfigError
        If the settings ask for two kinds of validation, for one by time without a column, or for
        something to be done by validation when there is none.
    DataError
        If a file cannot be opened, or one half has no rows.
    """
    import sparsetrain as st

    schema = st.data.Schema.read(settings.data.schema_file)
    ways = _ways(settings, files)
    whole = files.training
    trained = _labelled(whole, schema)
    for name, path in files.held_out.items():
        _warn_of_leak(name, trained & _labelled(path, schema))
    if not ways & _SPLITS.keys():
        return Rows(whole, {**files.held_out}, whole, len(trained))
    train, valid = _SPLITS[ways.pop()](whole, settings, schema)
    return Rows(train, {"valid": valid, **files.held_out}, whole, len(trained))


def _labelled(paths: Any, schema: st.data.Schema) -> set[str]:
    """Open files, see that each has labels, and return which they are."""
    import sparsetrain as st

    source = st.data.open_source(paths, schema)
    st.data.require_labels(source, schema)
    return {os.path.realpath(file) for file in getattr(source, "files", ())}


def _warn_of_leak(name: str, both: set[str]) -> None:
    if both:
        note(f"warning: --{name}: {min(both)} is trained on too; its score says little of new rows")


def _ways(settings: Settings, files: Files) -> set[str]:
    """Return how validation rows are chosen: one way, or none."""
    data = settings.data
    ways = {
        "--valid": files.valid,
        "--valid-share": data.valid_share,
        "--valid-from": data.valid_from,
    }
    given = {name for name, value in ways.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(sorted(given))}: validate in one way, drop the others")
    for option, value in (
        ("--early-stopping (train.patience)", settings.train.patience),
        ("--validate-every (train.validate_every)", settings.train.validate_every),
    ):
        if value is not None and not given:
            raise ConfigError(f"{option} needs rows to validate on: add {', '.join(ways)}")
    if data.time_column is not None and data.valid_from is None:
        raise ConfigError("data.time_column goes with data.valid_from (--valid-from)")
    return given


def _by_share(paths: Any, settings: Settings, schema: st.data.Schema) -> Any:
    import sparsetrain as st

    data = settings.data
    assert data.valid_share is not None
    return st.data.split_share(paths, data.valid_share, seed=data.valid_seed, schema=schema)


def _by_time(paths: Any, settings: Settings, schema: st.data.Schema) -> Any:
    import sparsetrain as st

    at, column = settings.data.valid_from, settings.data.time_column or schema.time
    assert at is not None
    if column is None:
        raise ConfigError("--valid-from: name the column by --time-column, or `time` in the schema")
    return st.data.split_time(paths, column, at, schema=schema)


_SPLITS = {"--valid-share": _by_share, "--valid-from": _by_time}
