# SPDX-License-Identifier: Apache-2.0
"""Task of a run, sent to every process as JSON, so that all of them do the same work."""

from dataclasses import asdict, dataclass
from typing import Any

from harness.batches import Arrays, make_batches
from harness.configs import CONFIGS, Config


class Refused(Exception):
    """An arm cannot do a task on this machine; the message says why."""


@dataclass(frozen=True)
class Task:
    """Names and numbers that decide a run.

    With 64 `batches` the rows that they look up do not stay in a processor's last cache, as they
    would not in training: 8 batches of 2048 touch only 8 MB of Criteo Kaggle's tables.
    """

    config_name: str
    batch: int
    optimizer: str
    threads: int
    batches: int
    precision: str = "float32"  # of our arm and the roof; a peer's name says its own
    accumulate: int = 1  # parts of a batch in our arm

    @property
    def config(self) -> Config:
        return CONFIGS[self.config_name]

    def make_batches(self) -> list[Arrays]:
        return make_batches(self.config, self.batch, self.batches)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
