# SPDX-License-Identifier: Apache-2.0
"""Saved models for `evaluate`, `predict`, `quantize` and `inspect`: options, loading, warnings."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsetrain.cli.output import note
from sparsetrain.cli.settings.model_class import import_class
from sparsetrain.errors import CheckpointError

if TYPE_CHECKING:
    import sparsetrain as st

ModelFolder = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder that `train --out` wrote.")
]
Checkpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="latest|best|auto",
        help="Checkpoint of a run: latest; best on the validation rows; auto: best if trained with "
        "--patience, else latest.",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="float32|bf16",
        help="Operands of matrix products; by default as in training.",
    ),
]
ModelClass = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODULE:CLASS",
        help="Class of your own model, in a module that is installed or in the current folder.",
    ),
]

_MOST_NAMED = 5


def load_by(
    load: Callable[..., Any], folder: Path, checkpoint: str, model_class: str | None, **options: Any
) -> Any:
    """Load a model with `st.load` or `st.load_predictor`."""
    require_no_export(folder)
    loaded = load(folder, checkpoint=checkpoint, model=import_class(model_class), **options)
    note_checkpoint(folder, checkpoint, loaded.steps)
    return loaded


def require_no_export(folder: Path) -> None:
    """Raise `CheckpointError` if a folder was written by `export`, not `train`."""
    if (folder / "manifest.txt").is_file():
        raise CheckpointError(
            f"{folder} is an export: serve it with sparsetrain serve {folder}; this command "
            "needs the folder that train --out wrote"
        )


def require_export(folder: Path) -> None:
    """Raise `CheckpointError` if a folder was written by `train`, not `export`."""
    if not (folder / "manifest.txt").exists() and any(
        (folder / name).is_file() for name in ("LATEST", "manifest.json")
    ):
        raise CheckpointError(
            f"{folder} is a trained model: sparsetrain export {folder} --out SERVED, then "
            "sparsetrain serve SERVED"
        )


def note_checkpoint(folder: Path, checkpoint: str, step: int) -> None:
    """Print a note if "auto" chose the best checkpoint, at `step`, and it is not the latest."""
    import sparsetrain as st

    run = st.Run(folder)
    best = run.best
    if checkpoint != "auto" or best is None or best == run.latest or not run.stops_early:
        return
    if best.name.endswith(f"-{step:012d}"):  # else the run has saved a newer one meanwhile
        note(
            f"{folder} was trained with early stopping: this is its best checkpoint, of step "
            f"{step:,} (--checkpoint latest: the last one)"
        )


def warn_unseen(
    dataset: "st.data.Dataset", encoder: "st.data.Encoder | None", limit: float
) -> dict[str, Any]:
    """Warn about columns with a share of rare or unseen ids above `limit`; return all shares.

    A column that was as rare in training is exempt: its share of known ids must also have fallen by
    more than the fraction `limit` of the share in training.
    """
    shares = dataset.id_shares
    total = sum(share.ids for share in shares)
    rare = encoder.rare_shares if encoder is not None and shares else []
    above = {
        share.column: share.unseen_share
        for share, before in zip(shares, rare, strict=True)
        if min(share.unseen_share, share.lost_share(before or 0.0)) > limit
    }
    if above:
        worst = sorted(above.items(), key=lambda item: -item[1])
        named = ", ".join(f"{name} {share:.0%}" for name, share in worst[:_MOST_NAMED])
        more = f" and {len(above) - _MOST_NAMED} more" if len(above) > _MOST_NAMED else ""
        note(
            f"warning: most categories were rare or never seen in training: {named}{more}; is this "
            "data of the same kind and time, written the same way? (--warn-unseen sets the limit)"
        )
    return {
        "unseen_share": sum(s.unseen for s in shares) / max(total, 1),
        "missing_share": sum(s.missing for s in shares) / max(total, 1),
        "unseen_columns": above,
    }
