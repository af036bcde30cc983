# SPDX-License-Identifier: Apache-2.0
"""Progressive validation: each window of time is scored, and then trained on.

Blum, Kalai and Langford 1999, https://doi.org/10.1145/307400.307439. A window is scored before
tables get rows for its new values, so scores use only past knowledge. Each window's run is saved in
a subfolder of `files.out` with the window's name.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sparsetrain.cli.output import format_scores, note
from sparsetrain.cli.processes import require_one
from sparsetrain.cli.ranking import ranking_options, read_interactions
from sparsetrain.cli.resume import EarlierRun
from sparsetrain.cli.run_training import fit_options, make_run, require_machine, require_new_run
from sparsetrain.cli.schema import schema_of
from sparsetrain.cli.settings import Settings
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.train_files import Files, Rows, time_column
from sparsetrain.cli.trainers import grow, load, trainer_for
from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.training.progress import format_count, format_seconds

if TYPE_CHECKING:
    import sparsetrain as st


class Window(NamedTuple):
    """Rows of a window to train on, and the same rows to score before that."""

    name: str
    data: Rows
    scored: Any
    files: Files  # `out` is the window's own folder


def run_windows(
    settings: Settings, files: Files, stop: StopSignals, resumes: bool
) -> dict[str, Any]:
    """Score and train window by window; if `resumes`, skip windows that already have a run.

    Returns
    -------
    dict
        `windows`, each with its name (`window`), `scores` (None for the first), `rows`, `seconds`
        and `table_rows`; `mean`, the means of the scores; `settings` and `stopped`.
    """
    _check(settings, files)
    require_machine(settings)
    found: list[dict[str, Any]] = []
    trainer, done = None, None
    for window in _windows(settings, files):
        entry = _stored(window, settings) if resumes else None
        if entry is not None:
            found.append(entry)
            done = window
            continue
        if done is not None:
            trainer, done = _finish(done, settings, stop), None
        if stop.requested():
            break
        trainer = _next(window, trainer, settings, stop, found)
    if done is not None:
        _finish(done, settings, stop)
    if len(found) < 2 and not stop.requested():
        raise ConfigError(
            f"--window {settings.data.window}: all rows are in one window; hour to month read "
            "numbers as seconds since 1970: for other units, give a span in the column's units"
        )
    scores = [entry["scores"] for entry in found if entry["scores"]]
    mean = {key: _mean([each[key] for each in scores]) for key in (scores or [{}])[0]}
    return {"windows": found, "mean": mean, "stopped": stop.name, "settings": settings.to_dict()}


def describe_windows(result: Mapping[str, Any]) -> str:
    """Return the scores of `run_windows` as a table."""
    windows = result["windows"]
    rows, seconds = (sum(window[key] for window in windows) for key in ("rows", "seconds"))
    work = f"trained on {format_count(rows, 'row')} of {format_count(len(windows), 'window')}"
    scores = {window["window"]: window["scores"] for window in windows}
    shown = format_scores({**scores, "mean": result["mean"] or None})
    return f"{work} in {format_seconds(seconds)}\n\n{shown}"


def _next(
    window: Window,
    trainer: st.Trainer | None,
    settings: Settings,
    stop: StopSignals,
    found: list[dict[str, Any]],
) -> st.Trainer | None:
    """Score a window and train on it, append the result to `found`, and return the trainer."""
    name, data = window.name, window.data
    if window.files.out is not None:
        require_new_run(window.files.out)
    scores = None
    if trainer is not None:
        options = ranking_options(settings, trainer, window.scored)
        scores = trainer.evaluate(window.scored, group_by=settings.train.group_by, **options)
    note(f"window {name}")
    if data.train.num_rows == 0:
        found.append({"window": name, "scores": scores, "rows": 0, "seconds": 0.0})
        return trainer
    if trainer is None:
        trainer = trainer_for(settings, data, None)
    else:
        trainer = grow(trainer, data.train if data.learn is None else data.learn)
    assert trainer.encoder is not None
    entry = {"window": name, "scores": scores, "table_rows": sum(trainer.encoder.tables.values())}
    history = _fit(trainer, window, settings, stop, entry)
    found.append({**entry, "rows": history["rows"], "seconds": history["seconds"]})
    return trainer


def _fit(
    trainer: st.Trainer,
    window: Window,
    settings: Settings,
    stop: StopSignals,
    entry: Mapping[str, Any],
    resume: bool = False,
) -> dict[str, Any]:
    run = make_run(settings, window.files, window.data)
    if run is not None:
        run.extra["window"] = entry
    with stop.deferred():
        history: dict[str, Any] = trainer.fit(
            window.data.train,
            progress="auto",
            stop=stop.requested,
            run=run,
            resume=resume,
            **fit_options(settings),
        )
    return history


def _stored(window: Window, settings: Settings) -> dict[str, Any] | None:
    """Return a window's saved result, or None if it has no run yet.

    Raises
    ------
    CheckpointError
        If it was trained with different settings or files.
    """
    import sparsetrain as st

    folder = window.files.out
    if folder is None or st.Run(folder).latest is None:
        return None
    extra = st.Run(folder).manifest()["extra"]
    same = {"settings": settings.to_dict(), "files": window.files.to_dict()}
    for key, value in same.items():
        if extra.get(key) != value:
            raise CheckpointError(
                f"{folder}: trained with different {key}; use the same, or a new --out"
            )
    return {**extra["window"], "rows": 0, "seconds": 0.0}


def _finish(window: Window, settings: Settings, stop: StopSignals) -> st.Trainer:
    """Load the trainer of a window's run, and train on the rest of the window."""
    folder, entry = window.files.out, _stored(window, settings)
    assert folder is not None and entry is not None
    trainer = load(EarlierRun(folder, settings, frozenset(), {}, frozenset()), "latest")
    note(f"continuing after step {trainer.steps:,} of {folder}")
    _fit(trainer, window, settings, stop, entry, resume=True)
    return trainer


def _windows(settings: Settings, files: Files) -> Iterator[Window]:
    import sparsetrain as st

    data, paths = settings.data, [str(path) for path in files.train]
    unit: Any = data.window

    def own(name: str) -> Files:
        return replace(files, out=None if files.out is None else files.out / name)

    if data.task == "ranking":
        log, how = read_interactions(settings, files)
        for name, split in log.split_windows(unit, **how):
            train: Any = st.data.open_source(split.train)
            train = replace(train, files=log.files)  # a resumed run checks these files for changes
            rows = Rows(train, {}, paths, len(log.files), split.schema, split.whole)
            yield Window(name, rows, split.test, own(name))
        return
    schema = schema_of(data, paths)
    column = time_column(data, schema, "--window")
    for name, source in st.data.split_windows(paths, column, unit, schema=schema):
        rows = Rows(source, {}, paths, len(source.files), schema)
        yield Window(name, rows, source, own(name))


def _check(settings: Settings, files: Files) -> None:
    train = settings.train
    for option, value in {
        "--valid": files.valid,
        "--test": files.test,
        "--patience": train.patience,
        "--validate-every": train.validate_every,
        "train.reduce_lr": train.reduce_lr,
        "train.parts": train.parts,
    }.items():
        if value is not None:
            raise ConfigError(f"{option}: --window already scores each window; remove one of them")
    require_one("--window")


def _mean(values: list[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
