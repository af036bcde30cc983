# SPDX-License-Identifier: Apache-2.0
"""What `train --start-from` begins with: another run's settings, weights and slots, on newer data.

It is a run of its own: its files, what it holds out and when it stops are said anew, the other run
is only read. Values that the other run did not know get rows of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsetrain.cli.options import settings_from
from sparsetrain.cli.output import note
from sparsetrain.cli.resuming import flat, shown, stored_in
from sparsetrain.cli.same_schema import require_same_schema
from sparsetrain.errors import CheckpointError
from sparsetrain.progress import format_count
from sparsetrain.settings import Settings

if TYPE_CHECKING:
    import sparsetrain as st

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

    def changes(self, section: str) -> bool:
        """Whether a setting of a section is another one."""
        return any(key.startswith(f"{section}.") for key in self.changed)


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
    before = {**flat(Settings().to_dict()), **{entry.key: entry.value for entry in entries}}
    settings = settings_from(options, config, overrides, entries)
    now = flat(settings.to_dict())
    changed = frozenset(key for key in now if now[key] != before.get(key, now[key]))
    for key in sorted(changed - _OPEN):
        if key.startswith(("model.", "data.", "optimizer.name")):
            raise CheckpointError(
                f"{key} is {shown(before[key])} in {folder} and cannot become {shown(now[key])}: "
                "leave it out, or train anew"
            )
    return Start(folder, settings, changed)


def trainer_from(start: Start, rows: Any, optimizer: st.optim.Optimizer) -> st.Trainer:
    """Load the other run, the best of it if it had early stopping, and give new values rows."""
    import sparsetrain as st

    train = start.settings.train
    known = st.load(
        start.folder,
        which="auto",
        target=train.target,
        optimizer=optimizer if start.changes("optimizer") else None,
        precision=train.precision,
        loss_scale=train.loss_scale,
    )
    note(f"starting from step {known.steps:,} of {start.folder}")
    known.seed = train.seed
    known.accumulate = start.settings.optimizer.accumulate
    known.fused = start.settings.optimizer.fused
    if known.encoder is None:
        raise CheckpointError(f"{start.folder} has no encoder: its rows cannot be read")
    data, schema = start.settings.data, known.encoder.schema
    if data.schema_file is not None:
        require_same_schema(data.schema_file, schema.to_dict(), start.folder, data.weights)
    encoder = known.encoder.extended(rows, min_count=start.min_count)
    made = known.extended(encoder)
    for name, after in encoder.tables.items():
        before = known.encoder.tables[name]
        if after > before:
            note(f"{name}: {format_count(after - before, 'new row')}, {after:,} in all")
    return made
