# SPDX-License-Identifier: Apache-2.0
"""One training run from files to scores, shared by `train` and `demo`.

Errors are raised early: about output folders and input files before data are read, about held-out
rows before the model is built. The run is saved before it is scored, so a signal or a full disk
during scoring loses nothing.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsetrain.cli.output import note, warn_if_useless
from sparsetrain.cli.output_files import require_free, require_writable
from sparsetrain.cli.processes import with_parts
from sparsetrain.cli.ranking import find_interactions, ranking_options
from sparsetrain.cli.resume import EarlierRun
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
    earlier: EarlierRun | None = None,
    *,
    profile: bool = False,
    verbose: bool = False,
    out_option: str | None = "--out",
) -> dict[str, Any]:
    """Train, save and score; continue or start from an earlier run.

    Returns
    -------
    dict
        `valid` and `test` (scores or None), `constant_logloss`, `rows`, `seconds`, `rows_per_s`,
        `epochs` (loss of each, and `valid`), `layout`, `out`, `scored` ("latest" or "best"),
        `stopped_early`, `best` (step and value, or None), `stopped` (a signal's name or None) and
        `settings`; with `profile`, `profile` (as `StepProfile.to_dict`, or None after too few
        steps).
    """
    settings = with_parts(settings, earlier is None)
    resumes = earlier is not None and earlier.resumes
    if files.out is not None and not resumes:
        require_new_run(files.out)
    require_machine(settings)
    if settings.data.task == "ranking":
        data = find_interactions(settings, files)
    else:
        data = find_rows(settings, files, earlier and earlier.schema)
    if files.out is None and out_option:
        note(f"the trained model will not be saved: {out_option} FOLDER saves it")
    trainer = trainer_for(settings, data, earlier)
    _note_updates(trainer, verbose)
    with stop.deferred():
        history = trainer.fit(
            data.train,
            validation=data.held_out.get("valid"),
            progress="auto",
            stop=stop.requested,
            run=make_run(settings, files, data),
            resume=resumes,
            allow_changed=(earlier and earlier.allowed) or (),
            profile=profile,
            **fit_options(settings),
        )
    _note_numerics(trainer)
    out = files.out if trainer.steps else None
    if out is not None:
        note(f"saved to {out}")
    measured = history.get("profile")
    scores = {} if stop.requested() else _score(trainer, data, history, settings)
    scored = scores.get("test") or scores.get("valid") or {}
    return {
        "valid": scores.get("valid"),
        "test": scores.get("test"),
        "constant_logloss": scored.get("constant_logloss"),
        **{key: history[key] for key in ("rows", "seconds", "rows_per_s", "epochs")},
        "layout": str(trainer.encoder.layout) if trainer.encoder else "",
        "out": None if out is None else str(out),
        "scored": history["checkpoint"],
        "stopped_early": history["stopped_early"],
        "best": history["best"],
        "stopped": stop.name,
        "settings": settings.to_dict(),
        **({"profile": measured and measured.to_dict()} if profile else {}),
    }


def require_new_run(out: Path) -> None:
    """Raise `ConfigError` unless a new run may be saved in the folder `out`."""
    from sparsetrain.training.run import is_free

    if is_free(out):
        require_writable(out)
    else:
        require_free(out)


def require_machine(settings: Settings) -> None:
    """Raise `ConfigError` if the machine lacks the device or instructions that settings need."""
    import sparsetrain as st
    from sparsetrain.runtime.targets import resolve_target

    st.precision.policy_for(settings.train.precision, resolve_target(settings.train.target))


def _note_updates(trainer: "st.Trainer", verbose: bool) -> None:
    if verbose:
        lines = trainer.optimizer.describe(trainer.state)
    else:
        summary = trainer.optimizer.summarize(trainer.state)
        lines = [f"updates: {summary}; --verbose lists the tables and the reasons"]
    for line in lines:
        note(line)


def _note_numerics(trainer: "st.Trainer") -> None:
    if trainer.state.skipped:
        note(f"{trainer.state.skipped:,} steps were skipped: a number was not finite")
    if trainer.scaling is not None:
        note(f"the loss was scaled by {trainer.scaling.value:,.10g} at the end")


def make_run(settings: Settings, files: Files, data: Rows) -> "st.Run | None":
    """Return the run to save to; None without a folder."""
    import sparsetrain as st

    if files.out is None:
        return None
    train = settings.train
    return st.Run(
        files.out,
        every=train.checkpoint_every,
        keep=train.keep,
        log_every=train.log_every,
        tensorboard=train.tensorboard,
        extra=_stored_settings(settings, files, data),
    )


def fit_options(settings: Settings) -> dict[str, Any]:
    """Return the arguments of `Trainer.fit` that come from settings."""
    import sparsetrain as st

    train = settings.train
    rule = st.ReduceLROnPlateau
    reduce_lr = rule(train.reduce_lr, train.reduce_lr_patience) if train.reduce_lr else None
    return {
        "epochs": train.epochs,
        "batch_size": train.batch_size,
        "shuffle": train.shuffle,
        "validate_every": train.validate_every,
        "validate_epochs": train.validate_epochs,
        **({} if settings.model.has_labels else {"k": train.k}),
        "early_stopping": st.EarlyStopping(train.monitor, train.patience),
        "reduce_lr": reduce_lr,
        "group_by": train.group_by,
        "check_numerics": train.check_numerics,
    }


def _stored_settings(settings: Settings, files: Files, data: Rows) -> dict[str, Any]:
    """Return the entries that `resume.read_run` will read, with the contents of a schema file."""
    is_given = settings.data.schema_file is not None or settings.data.label is not None
    schema = {"schema": data.schema.to_dict()} if is_given else {}
    return {"settings": settings.to_dict(), "files": files.to_dict(), **schema}


def _score(
    trainer: "st.Trainer", data: Rows, history: dict[str, Any], settings: Settings
) -> dict[str, Any]:
    """Score the held-out rows, except rows that were scored at the end of training."""
    scored: dict[str, Any] = {}
    train = settings.train
    is_last = history["checkpoint"] == "latest" and history["epochs"] and train.negatives is None
    if is_last and settings.model.has_labels:  # rankings are scored again, to add popularity
        scored = {"valid": history["epochs"][-1].get("valid")}
    scores = {
        name: scored.get(name)
        or trainer.evaluate(
            rows, group_by=train.group_by, **ranking_options(settings, trainer, rows)
        )
        for name, rows in data.held_out.items()
    }
    for name, score in scores.items():
        warn_if_useless(name, score)
    return scores
