# SPDX-License-Identifier: Apache-2.0
"""What `train --start-from` begins with: another run's settings, weights and slots, on newer data.

It is a run of its own: its files, what it holds out and when it stops are said anew, the other run
is only read. Values that the other run did not know get rows of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsetrain.cli.options import settings_from
from sparsetrain.cli.resuming import compared, shown, stored_in
from sparsetrain.cli.settings import Settings
from sparsetrain.errors import CheckpointError

# What is about the other run's rows, or about when it ended.
_ANEW = frozenset(
    {"data.valid_share", "data.valid_seed", "data.valid_from", "data.time_column"}
    | {"train.patience", "train.validate_every", "train.monitor"}
)
# Settings of the data that say nothing about how a known value is encoded; where a schema lies
# says nothing of what is in it.
_OPEN = _ANEW | {"data.min_count", "data.warn_unseen", "data.schema_file"}


@dataclass(frozen=True)
class Start:
    """A run that another one begins from.

    Attributes
    ----------
    folder : Path
    settings : Settings
        Of the run that begins.
    changed : frozenset of str
        Those that the other run had otherwise.
    """

    folder: Path
    settings: Settings
    changed: frozenset[str]

    @property
    def min_count(self) -> int | None:
        """How often a new value must occur, if that was asked for."""
        return self.settings.data.min_count if "data.min_count" in self.changed else None


def started(
    folder: Path,
    options: Mapping[str, Any],
    config: Path | None,
    overrides: list[str] | None,
) -> Start:
    """Read what the other run was trained with, and what is asked for now.

    Raises
    ------
    CheckpointError
        If the folder holds no run, or a setting differs that decides what its arrays are.
    """
    entries = [entry for entry in stored_in(folder).entries if entry.key not in _ANEW]
    settings = settings_from(options, config, overrides, entries)
    before, now, changed = compared(entries, settings)
    for key in sorted(changed - _OPEN):
        if key.startswith(("model.", "data.", "optimizer.name")):
            raise CheckpointError(
                f"{key} is {shown(before[key])} in {folder} and cannot become {shown(now[key])}: "
                "leave it out, or train anew"
            )
    return Start(folder, settings, changed)
