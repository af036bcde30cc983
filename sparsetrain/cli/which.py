# SPDX-License-Identifier: Apache-2.0
"""Tells which checkpoint of a run was taken, where its best was and nobody had asked for it."""

from pathlib import Path

from sparsetrain.cli.output import note


def tell_which(folder: Path, which: str, step: int) -> None:
    """Say it if "auto" took the best checkpoint, which is that of `step`."""
    import sparsetrain as st

    latest = st.Run(folder).latest
    if which == "auto" and latest is not None and not latest.name.endswith(f"-{step:012d}"):
        note(
            f"{folder} was trained with early stopping: this is its best checkpoint, of step "
            f"{step:,} (--which latest: the last)"
        )
