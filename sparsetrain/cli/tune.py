# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain tune`: a search over settings, as a study of Optuna (extra `tune`).

The study is stored in the folder's `trials.jsonl`, so the search can resume: an interrupted trial
runs again with the same settings. A trial that fails with NaN or infinity counts as pruned.
"""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sparsetrain.cli.listings import as_toml
from sparsetrain.cli.options import AsJson, SettingOptions, with_settings
from sparsetrain.cli.output import emit, format_score, format_table, note, notes_once
from sparsetrain.cli.output_files import replace_file, require_writable
from sparsetrain.cli.run_training import run_training
from sparsetrain.cli.settings import Settings
from sparsetrain.cli.settings.resolve import Entry, parse_text
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.train_files import Files
from sparsetrain.errors import ConfigError, DataError, NumericalError
from sparsetrain.system.file_locks import name_write_errors
from sparsetrain.system.regular_files import read_regular_file

_MOST_BYTES = 1 << 30  # most bytes of the file of trials
_SHOWN = 10  # trials in the final table
_QUEUED = "fixed_params"  # Optuna's entry for the settings of a queued trial


@with_settings(exclude="--warn-unseen")
def tune(
    settings: SettingOptions,
    train: Annotated[list[Path], typer.Argument(metavar="TRAIN", help="Files to train on.")],
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Keep the trials here; the same search resumes.")
    ],
    search: Annotated[
        list[str],
        typer.Option(
            metavar="SECTION.KEY=VALUES",
            help="A setting and its values, A,B,C, or a range, LOW..HIGH, or log:LOW..HIGH. Once "
            "for each setting.",
        ),
    ],
    valid: Annotated[Path | None, typer.Option(metavar="FILE", help="File to score on.")] = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Number of trials; a grid runs all its points.")
    ] = 20,
    sampler: Annotated[
        Literal["random", "grid", "optuna"], typer.Option(help="How trials are chosen.")
    ] = "random",
    as_json: AsJson = False,
) -> None:
    """Search settings for the best validation score."""
    from sparsetrain.training.run.lock import locked

    optuna = _optuna()
    space = dict(map(_dimension, search))
    points = _grid(space) if sampler == "grid" else []
    base, files, path = settings.resolve(), Files(train, valid), out / "trials.jsonl"
    seed, count = base.train.seed, len(points) or trials
    monitor = base.train.monitor or ("loss" if base.model.has_labels else "ndcg@10")
    plan = {"search": search, "sampler": sampler, "seed": seed, "monitor": monitor}
    as_toml(base).encode()  # raises for a path that is not UTF-8, which TOML cannot hold
    require_writable(path)
    choose = getattr(optuna.samplers, "TPESampler" if sampler == "optuna" else "RandomSampler")
    out.mkdir(parents=True, exist_ok=True)
    with StopSignals() as stop, locked(out), notes_once():
        with name_write_errors(path, DataError):  # raises before the first trial if unwritable
            study = _open_study(path, _shown(plan), monitor, space)
            for point in points:
                study.enqueue_trial(point, skip_if_exists=True)
        for number in range(len(_over(study)), count):
            with name_write_errors(path, DataError):
                study.sampler = choose(seed=_seed(seed, number))
                trial = study.ask(space)
            values = _values(trial)
            named = ", ".join(f"{key}={_short(value)}" for key, value in values.items())
            note(f"trial {number + 1} of {count}: {named}")
            score, error, state = None, None, None
            try:
                score = _score(_with(settings, values), files, stop)
            except NumericalError as raised:
                error, state = str(raised), optuna.trial.TrialState.PRUNED
            with name_write_errors(path, DataError):
                trial.set_user_attr("error", error)
                study.tell(trial, score, state)
        found = [*map(_record, _over(study))]
        best = _best_first(found, monitor)
        with replace_file(out / "best.toml") as draft:
            draft.write_text(as_toml(_with(settings, best[0]["settings"])), "utf-8")
        emit({"best": best[0], "trials": found}, _describe(best, out), as_json)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError("tune needs Optuna: pip install 'sparsetrain[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _score(settings: Settings, files: Files, stop: StopSignals) -> float:
    """Train, and return the best validation score."""
    result = run_training(settings, files, stop, out_option=None)
    stop.raise_if_requested()
    if result["best"] is None:
        raise ConfigError("tune needs validation rows: add --valid or --valid-share")
    return float(result["best"]["value"])


def _with(settings: SettingOptions, values: dict[str, Any]) -> Settings:
    entries = [Entry(key, value, f"--search {key}") for key, value in values.items()]
    return replace(settings, entries=[*settings.entries, *entries]).resolve()


def _dimension(text: str) -> tuple[str, Any]:
    """Return a setting and the distribution of its values; choices are JSON text."""
    key, equals, values = text.partition("=")
    is_log, is_range = values.startswith("log:"), ".." in values
    parts = values.removeprefix("log:").split("..") if is_range else [f"[{values}]"]
    parsed = [parse_text(part) for part in parts]
    chosen = parsed if is_range else parsed[0]
    if not is_range and isinstance(chosen, str):  # words need no quotes
        chosen = [parse_text(part) for part in values.split(",")]
    numbers = is_range and all(isinstance(n, (int, float)) for n in chosen) and len(chosen) == 2
    if not (equals and values) or is_range != numbers or (is_range and chosen[0] >= chosen[1]):
        raise ConfigError(
            f"--search {text}: expected SECTION.KEY=A,B,C, or LOW..HIGH or log:LOW..HIGH of numbers"
        )
    if is_log and not (is_range and chosen[0] > 0):
        raise ConfigError(f"--search {text}: log: needs a range above 0")
    kinds = _optuna().distributions
    if not is_range:
        return key.strip(), kinds.CategoricalDistribution(
            [json.dumps(v, default=str) for v in chosen]
        )
    whole = all(isinstance(n, int) for n in chosen)
    kind = kinds.IntDistribution if whole else kinds.FloatDistribution
    return key.strip(), kind(*chosen, log=is_log)


def _grid(space: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all points of a grid search, each a dict from setting to choice."""
    for key, dimension in space.items():
        if not hasattr(dimension, "choices"):
            raise ConfigError(f"--search {key}: a grid needs values, A,B,C, not a range")
    points = itertools.product(*(dimension.choices for dimension in space.values()))
    return [dict(zip(space, point, strict=True)) for point in points]


def _seed(seed: int, number: int) -> int:
    """Return the sampler's seed for a trial, distinct for each seed and trial."""
    import numpy as np

    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _open_study(path: Path, name: str, monitor: str, space: dict[str, Any]) -> Any:
    """Return the study of a search, and queue interrupted trials again.

    A trial that did not have all its settings yet is drawn again from the same seed.
    """
    optuna, storage = _optuna(), _open_storage(path)
    for other in optuna.get_all_study_names(storage):
        if other != name and _over(optuna.load_study(study_name=other, storage=storage)):
            raise ConfigError(
                f"--out {path.parent}: it has the trials of {other}; name a different folder"
            )
    direction = "minimize" if _is_loss(monitor) else "maximize"
    study = optuna.create_study(
        storage=storage, study_name=name, direction=direction, load_if_exists=True
    )
    states = optuna.trial.TrialState
    waiting = [trial.system_attrs[_QUEUED] for trial in study.get_trials(states=[states.WAITING])]
    for trial in study.get_trials(states=[states.RUNNING]):
        settings = trial.system_attrs.get(_QUEUED, trial.params)
        if settings.keys() == space.keys() and settings not in waiting:
            study.enqueue_trial(settings)
        study.tell(trial.number, state=states.FAIL)
    return study


def _open_storage(path: Path) -> Any:
    """Read a file of trials, without a truncated last line; create it if there is none."""
    storages = _optuna().storages
    path.touch()
    try:
        content = read_regular_file(path, _MOST_BYTES)
        end = content.rfind(b"\n") + 1
        if content and not end:
            raise ValueError("no line is whole")
        storage = storages.JournalStorage(storages.journal.JournalFileBackend(str(path)))
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except Exception:  # Optuna raises various errors for a damaged line
        reason = "damaged"
    else:
        os.truncate(path, end)
        return storage
    raise ConfigError(f"{path}: {reason}; remove it, or name a different folder")


def _over(study: Any) -> list[Any]:
    """Return the completed trials: with a score, or failed with NaN or infinity."""
    states = _optuna().trial.TrialState
    return list(study.get_trials(states=[states.COMPLETE, states.PRUNED]))


def _values(trial: Any) -> dict[str, Any]:
    """Return the settings of a trial."""
    return {k: json.loads(v) if isinstance(v, str) else v for k, v in trial.params.items()}


def _record(trial: Any) -> dict[str, Any]:
    error = trial.user_attrs.get("error")
    return {"settings": _values(trial), "score": trial.value, "error": error}


def _is_loss(monitor: str) -> bool:
    """Return whether a smaller score is better."""
    import sparsetrain as st

    return st.EarlyStopping(monitor).is_better(0.0, 1.0)


def _best_first(records: list[dict[str, Any]], monitor: str) -> list[dict[str, Any]]:
    scored = [record for record in records if record["score"] is not None]
    if not scored:
        raise NumericalError(
            "no trial has a score: all had a loss, gradient or score that was not finite; search "
            "lower learning rates"
        )
    return sorted(scored, key=lambda record: record["score"], reverse=not _is_loss(monitor))


def _shown(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _describe(best: list[dict[str, Any]], out: Path) -> str:
    keys = [*best[0]["settings"]]
    rows = [
        [format_score(r["score"], "{:.5f}"), *map(_short, r["settings"].values())]
        for r in best[:_SHOWN]
    ]
    table = format_table([["score", *keys], *rows])
    return f"{table}\n\nsparsetrain train TRAIN --config {out / 'best.toml'}"
