# SPDX-License-Identifier: Apache-2.0
"""Tells which checkpoint of a run was taken, where its best was and nobody had asked for it."""

from pathlib import Path

from sparsetrain.cli.output import note


def tell_which(folder: Path, which: str, step: int) -> None:
    """Say it if "auto" took the best checkpoint, which is that of `step`, and not the latest.

    That the run has saved another meanwhile does not make it the best.
    """
    import sparsetrain as st

    if which != "auto":
        return
    run, taken = st.Run(folder), f"-{step:012d}"
    best = run.best
    if best is None or best == run.latest or not best.name.endswith(taken):
        return
    if run.stops_early:
        note(
            f"{folder} was trained with early stopping: this is its best checkpoint, of step "
            f"{step:,} (--which latest: the last)"
        )
