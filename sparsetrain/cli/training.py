# SPDX-License-Identifier: Apache-2.0
"""One training run from files to scores: what `train` and `demo` share.

What can be found wrong is found early: places and files before data are read, every row of the
held-out files before the model is built. The run is saved before it is scored, so that a signal
or a full disk during scoring loses nothing.
"""

from typing import TYPE_CHECKING, Any

from sparsetrain.cli.files import Files
from sparsetrain.cli.output import note, warn_if_useless
from sparsetrain.cli.preflight import require_free, require_machine
from sparsetrain.cli.resuming import Resumed
from sparsetrain.cli.rows import Rows, find_rows
from sparsetrain.cli.settings import Settings
from sparsetrain.cli.starting import Start
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.trainers import trainer_for

if TYPE_CHECKING:
    import sparsetrain as st


def run_training(
    settings: Settings,
    files: Files,
    stop: StopSignals,
    begun: Resumed | None = None,
    start: Start | None = None,
    *,
    profile: bool = False,
    verbose: bool = False,
    keeps: str = "--out",
) -> dict[str, Any]:
    """Train, save and score; `keeps` is the option that `files.out` is from.

    A run goes on with `begun`, or starts from the weights of another, or from fresh ones.

    With `verbose` it is said of each table how it is updated, and why.

    Returns
    -------
    dict
        `valid` and `test` (scores or None), `constant_logloss`, `rows`, `seconds`, `rows_per_s`,
        `epochs` (loss of each, and `valid`), `layout`, `out`, `scored` ("latest" or "best"),
        `stopped_early`, `best` (step and value, or None), `stopped` (a signal's name or None) and
        `settings`; with `profile`, `profile` (as `StepProfile.to_dict`, or None after too few
        steps).

    Raises
    ------
    SparsetrainError
        For anything wrong with files, settings, numbers or memory; checkpoints stay.
    """
    if files.out is not None and begun is None:
        require_free(files.out)
    require_machine(settings)
    data = find_rows(settings, files)
    if files.out is None:
        note(f"the trained model will not be kept: {keeps} FOLDER keeps it")
    trainer = trainer_for(settings, data, begun, start)
    _tell_updates(trainer, verbose)
    with stop.deferred():
        history = _fit(trainer, settings, files, data, stop, begun, profile)
    if trainer.state.skipped:
        note(f"{trainer.state.skipped:,} steps were skipped: a number was not finite")
    if trainer.scaling is not None:
        note(f"the loss was scaled by {trainer.scaling.value:,.10g} at the end")
    out = _saved(trainer, files)
    scores = {} if stop.requested() else _score(trainer, data, history)
    return {
        **_result(scores, history),
        "epochs": history["epochs"],
        "layout": str(trainer.encoder.layout) if trainer.encoder else "",
        "out": out,
        "scored": history["which"],
        "stopped_early": history["stopped_early"],
        "best": history["best"],
        "stopped": stop.name,
        "settings": settings.to_dict(),
        **_profiled(history),
    }


def _tell_updates(trainer: "st.Trainer", verbose: bool) -> None:
    if verbose:
        lines = trainer.optimizer.describe(trainer.state)
    else:
        summary = trainer.optimizer.summarize(trainer.state)
        lines = [f"updates: {summary}; --verbose says of which tables, and why"]
    for line in lines:
        note(line)


def _fit(
    trainer: "st.Trainer",
    settings: Settings,
    files: Files,
    data: Rows,
    stop: StopSignals,
    begun: Resumed | None,
    profile: bool,
) -> dict[str, Any]:
    import sparsetrain as st

    train = settings.train
    run = None
    if files.out is not None:
        run = st.Run(
            files.out,
            every=train.checkpoint_every,
            keep=train.keep,
            log_every=train.log_every,
            tensorboard=train.tensorboard,
            extra=_begun_with(settings, files),
        )
    return trainer.fit(
        data.train,
        validation=data.held_out.get("valid"),
        epochs=train.epochs,
        batch_size=train.batch_size,
        shuffle=train.shuffle,
        progress="auto",
        stop=stop.requested,
        run=run,
        resume=begun is not None,
        validate_every=train.validate_every,
        early_stopping=st.EarlyStopping(train.monitor, train.patience),
        check_numerics=train.check_numerics,
        allow_changed=begun.allowed if begun else (),
        profile=profile,
    )


def _begun_with(settings: Settings, files: Files) -> dict[str, Any]:
    """Return what `resuming` reads: of a schema file what it says, for it may be edited."""
    import sparsetrain as st

    file = settings.data.schema_file
    schema = {} if file is None else {"schema": st.data.Schema.read(file).to_dict()}
    return {"settings": settings.to_dict(), "files": files.to_dict(), **schema}


def _profiled(history: dict[str, Any]) -> dict[str, Any]:
    if "profile" not in history:
        return {}
    found = history["profile"]
    return {"profile": None if found is None else found.to_dict()}


def _saved(trainer: "st.Trainer", files: Files) -> str | None:
    """Return where the run is; one that was stopped before its first step is nowhere."""
    if files.out is None or not trainer.steps:
        return None
    note(f"saved to {files.out}")
    return str(files.out)


def _score(trainer: "st.Trainer", data: Rows, history: dict[str, Any]) -> dict[str, Any]:
    """Score the held-out rows; the end of the training may have scored one of them already."""
    known: dict[str, Any] = {}
    if history["which"] == "latest" and history["epochs"]:
        known = {"valid": history["epochs"][-1].get("valid")}
    scores = {
        name: known.get(name) or trainer.evaluate(rows) for name, rows in data.held_out.items()
    }
    for name, score in scores.items():
        warn_if_useless(name, score)
    return scores


def _result(scores: dict[str, Any], history: dict[str, Any]) -> dict[str, Any]:
    judged = scores.get("test") or scores.get("valid") or {}
    return {
        "valid": scores.get("valid"),
        "test": scores.get("test"),
        "constant_logloss": judged.get("constant_logloss"),
        **{key: history[key] for key in ("rows", "seconds", "rows_per_s")},
    }
