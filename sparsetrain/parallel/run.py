# SPDX-License-Identifier: Apache-2.0
"""`SharedRun`: a run's folder on several ranks; rank 0 locks it, logs and writes pointers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sparsetrain.parallel import saving
from sparsetrain.parallel.shards import Shards
from sparsetrain.training.run import Run


class SharedRun(Run):
    """A `Run` of several ranks; every rank must call its methods."""

    def __init__(self, run: Run, shards: Shards) -> None:
        vars(self).update(vars(run))
        self._shards = shards
        self.logs = shards.rank == 0

    @contextlib.contextmanager
    def writing(self, **options: Any) -> Iterator[None]:
        """See `Run.writing`."""
        with super().writing(**options) if self.logs else contextlib.nullcontext():
            named = self.folder if self.logs else None
            self.folder = saving.require_shared(self._shards.comm, named)
            yield

    def _write(
        self, path: Path, arrays: Mapping[str, np.ndarray], manifest: dict[str, Any]
    ) -> None:
        saving.write(self._shards, path, arrays, manifest)

    def _name(self, name: str, best: bool) -> None:
        if self.logs:
            super()._name(name, best)
        self._shards.comm.any(False)  # wait until rank 0 is done
