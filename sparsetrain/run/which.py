# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint of a run is meant where nobody says: the best, if it was trained to stop at it.

A run of early stopping is asked for its best weights, so its last ones are what it only needed to
find them. Any other run is asked for its last.
"""

from __future__ import annotations

import os
from typing import Any

from sparsetrain import checkpoint
from sparsetrain.run.folder import checkpoint_in

AUTO = "auto"


def chosen(folder: str | os.PathLike[str], which: str) -> str:
    """Return "latest" or "best" for "auto", any other word as it is.

    Raises
    ------
    CheckpointError
        If the run's newest checkpoint cannot be read.
    """
    if which != AUTO:
        return which
    latest = checkpoint_in(folder, "latest", missing_ok=True)
    if latest is None or checkpoint_in(folder, "best", missing_ok=True) is None:
        return "latest"
    with checkpoint.opened(latest) as saved:
        return "best" if _stops_early(saved.manifest) else "latest"


def _stops_early(manifest: dict[str, Any]) -> bool:
    found: Any = manifest
    for key in ("run", "plan", "early_stopping", "patience"):
        found = found.get(key) if isinstance(found, dict) else None
    return found is not None
