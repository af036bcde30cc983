# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint of a run is meant where nobody says: the best, if it was trained to stop at it.

A run of early stopping is asked for its best weights, so its last ones are what it only needed to
find them. Any other run is asked for its last.
"""

from __future__ import annotations

import os

from sparsetrain.run.folder import Run

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
    run = Run(folder)
    if run.latest is None or run.best is None:
        return "latest"
    return "best" if run.stops_early else "latest"
