# SPDX-License-Identifier: Apache-2.0
"""One training run from files to scores, shared by `train` and `demo`.

Errors are raised early: for output folders and input files before data are read, for held-out rows
before the model is built. The run is saved before it is scored, so a signal or a full disk during
scoring loses nothing.
"""

from typing import TYPE_CHECKING, Any

from sparsetrain.cli.output import note, warn_if_useless
from sparsetrain.cli.output_files import require_free
from sparsetrain.cli.resume import ResumedRun, StartRun
from sparsetrain.cli.settings import Settings
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.train_files import Files, Rows, find_rows
from sparsetrain.cli.trainers import trainer_for

if TYPE_CHECKING:
    import sparsetrain as st


def run_training(
    settings: Settings,
    files: Files,
    stop: StopSignals,
    resumed: ResumedRun | None = None,
    start: StartRun | None = None,
    *,
    profile: bool = False,
    verbose: bool = False,
    out_option: str = "--out",
) -> dict[str, Any]:
    """Train, save and score.

    Parameters
    ----------
    settings : Settings
        All of them.
    files : Files
        Input files and output folder.
    stop : StopSignals
        Ends the training after a batch.
    resumed : ResumedRun, optional
        The run to continue.
    start : StartRun, optional
        The run whose weights to start from.
    profile : bool
        Profile steps.
    verbose : bool
        Note the update path of each table.
    out_option : str
        The option that `files.out` comes from.

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
        For errors in files, settings, numbers or memory; checkpoints are kept.
    """
    if files.out is not None and resumed is None:
        require_free(files.out)
    _require_machine(settings)
    data = find_rows(settings, files)
    if files.out is None:
        note(f"the trained model will not be saved: {out_option} FOLDER saves it")
    trainer = trainer_for(settings, data, resumed, start)
    _note_updates(trainer, verbose)
    with stop.deferred():
        history = _fit(trainer, settings, files, data, stop, resumed, profile)
    if trainer.state.skipped:
        note(f"{trainer.state.skipped:,} steps were skipped: a number was not finite")
    if trainer.scaling is not None:
        note(f"the loss was scaled by {trainer.scaling.value:,.10g} at the end")
    out = _note_saved(trainer, files)
    scores = {} if stop.requested() else _score(trainer, data, history)
    return {
        **_result(scores, history),
        "epochs": history["epochs"],
        "layout": str(trainer.encoder.layout) if trainer.encoder else "",
        "out": out,
        "scored": history["checkpoint"],
        "stopped_early": history["stopped_early"],
        "best": history["best"],
        "stopped": stop.name,
        "settings": settings.to_dict(),
        **_profiled(history),
    }


def _require_machine(settings: Settings) -> None:
    """Raise unless this machine has the device and instructions that the settings need.

    Raises
    ------
    ConfigError
        The message says what is missing.
    """
    import sparsetrain as st
    from sparsetrain.runtime.targets import resolve_target

    target, precision = settings.train.target, settings.train.precision
    if target == "auto" and settings.model.table_dtype != "float32":
        target = "cpu"  # others have no kernels for such tables
    if target == "cuda" or precision != "float32":
        st.precision.policy_for(precision, resolve_target(target))


def _note_updates(trainer: "st.Trainer", verbose: bool) -> None:
    if verbose:
        lines = trainer.optimizer.describe(trainer.state)
    else:
        summary = trainer.optimizer.summarize(trainer.state)
        lines = [f"updates: {summary}; --verbose lists the tables and the reasons"]
    for line in lines:
        note(line)


def _fit(
    trainer: "st.Trainer",
    settings: Settings,
    files: Files,
    data: Rows,
    stop: StopSignals,
    resumed: ResumedRun | None,
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
            extra=_stored_settings(settings, files),
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
        resume=resumed is not None,
        validate_every=train.validate_every,
        early_stopping=st.EarlyStopping(train.monitor, train.patience),
        check_numerics=train.check_numerics,
        allow_changed=resumed.allowed if resumed else (),
        profile=profile,
    )


def _stored_settings(settings: Settings, files: Files) -> dict[str, Any]:
    """Return the entries that `resume.read_run` reads; of a schema file its contents."""
    import sparsetrain as st

    file = settings.data.schema_file
    schema = {} if file is None else {"schema": st.data.Schema.read(file).to_dict()}
    return {"settings": settings.to_dict(), "files": files.to_dict(), **schema}


def _profiled(history: dict[str, Any]) -> dict[str, Any]:
    if "profile" not in history:
        return {}
    profile = history["profile"]
    return {"profile": None if profile is None else profile.to_dict()}


def _note_saved(trainer: "st.Trainer", files: Files) -> str | None:
    """Return the folder of the run, or None if it stopped before its first step."""
    if files.out is None or not trainer.steps:
        return None
    note(f"saved to {files.out}")
    return str(files.out)


def _score(trainer: "st.Trainer", data: Rows, history: dict[str, Any]) -> dict[str, Any]:
    """Score the held-out rows, except those that the end of the training has scored."""
    scored: dict[str, Any] = {}
    if history["checkpoint"] == "latest" and history["epochs"]:
        scored = {"valid": history["epochs"][-1].get("valid")}
    scores = {
        name: scored.get(name) or trainer.evaluate(rows) for name, rows in data.held_out.items()
    }
    for name, score in scores.items():
        warn_if_useless(name, score)
    return scores


def _result(scores: dict[str, Any], history: dict[str, Any]) -> dict[str, Any]:
    scored = scores.get("test") or scores.get("valid") or {}
    return {
        "valid": scores.get("valid"),
        "test": scores.get("test"),
        "constant_logloss": scored.get("constant_logloss"),
        **{key: history[key] for key in ("rows", "seconds", "rows_per_s")},
    }
