# SPDX-License-Identifier: Apache-2.0
"""The files of a run: what it reads, and where it is saved."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Files:
    """What a run reads and where it is saved; None for what there is not."""

    train: Sequence[Path]
    valid: Path | None = None
    test: Path | None = None
    out: Path | None = None

    def or_else(self, stored: Mapping[str, Any]) -> Files:
        """Return these files, and those of a resumed run where none were given."""
        own = {name: stored.get(name) for name in ("train", "valid", "test")}
        train = self.train or [Path(str(path)) for path in own["train"] or ()]
        valid, test = (
            given or (Path(str(own[name])) if own[name] else None)
            for name, given in (("valid", self.valid), ("test", self.test))
        )
        return Files(train, valid, test, self.out)

    def to_dict(self) -> dict[str, Any]:
        """Return absolute paths, to be stored with the run."""
        held_out = {name: os.path.abspath(path) for name, path in self.held_out.items()}
        return {"train": [os.path.abspath(path) for path in self.training], **held_out}

    @property
    def held_out(self) -> dict[str, str]:
        """The files that are scored, by name."""
        pairs = {"valid": self.valid, "test": self.test}
        return {name: str(path) for name, path in pairs.items() if path is not None}

    @property
    def training(self) -> list[str]:
        """The files that are trained on."""
        return [str(path) for path in self.train]
