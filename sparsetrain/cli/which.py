# SPDX-License-Identifier: Apache-2.0
"""The model that a command names, and which checkpoint of a run that is."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sparsetrain.cli.output import note
from sparsetrain.cli.own_class import class_of

if TYPE_CHECKING:
    import sparsetrain as st


def predictor_of(
    folder: Path, which: str, precision: str | None, own: str | None
) -> "st.Trainer | st.QuantizedModel":
    """Load what `evaluate` and `predict` were given; `own` names the class of another's model.

    Raises
    ------
    SparsetrainError
        As `load_predictor`; or if there is no such class.
    """
    import sparsetrain as st

    found: Any = st.load_predictor(
        folder, which=which, precision=cast(Any, precision), model=class_of(own)
    )
    tell_which(folder, which, found.steps)
    return found


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
