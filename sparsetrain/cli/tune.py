# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain tune`: a search over settings, each trial a line of a file, by which it resumes.

A trial's settings follow from its number and `train.seed`; with Optuna from the trials before too.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from sparsetrain.cli.options import AsJson, SettingOptions, with_settings
from sparsetrain.cli.output import emit, format_score, format_table, note
from sparsetrain.cli.output_files import replace_file, require_writable
from sparsetrain.cli.run_training import run_training
from sparsetrain.cli.settings.resolve import Entry, parse_text
from sparsetrain.cli.settings_command import as_toml
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.train_files import Files
from sparsetrain.errors import ConfigError, NumericalError
from sparsetrain.system.regular_files import read_regular_file

Record = dict[str, Any]
_MOST_BYTES = 1 << 30  # of the file of trials
_SHOWN = 10  # trials of the final table


class Dimension(NamedTuple):
    """A setting that is searched: some values, or a range of numbers."""

    key: str
    values: Sequence[Any]  # choices, or the two ends
    is_range: bool
    is_log: bool

    def at(self, draw: float) -> Any:
        """Return the value of a number from 0 to below 1."""
        if not self.is_range:
            return self.values[int(draw * len(self.values))]
        low, high = self.values
        value = low * (high / low) ** draw if self.is_log else low + draw * (high - low)
        return round(value) if isinstance(low, int) and isinstance(high, int) else float(value)


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
    trials: Annotated[int, typer.Option(min=1, help="Trials in all; a grid has its own.")] = 20,
    sampler: Annotated[
        Literal["random", "grid", "optuna"], typer.Option(help="How trials are chosen.")
    ] = "random",
    as_json: AsJson = False,
) -> None:
    """Search settings for the best validation score."""
    dimensions = [_dimension(text) for text in search]
    base, files = settings.resolve(), Files(train, valid)
    seed = base.train.seed
    choose = _SAMPLERS[sampler](dimensions, seed)
    if sampler == "grid":
        trials = math.prod(len(dimension.values) for dimension in dimensions)
    monitor = base.train.monitor or ("ndcg@10" if base.data.task == "ranking" else "loss")
    as_toml(base).encode()  # of a path that is not UTF-8 no settings file can be made
    log = _Log(out, {"search": search, "sampler": sampler, "seed": seed})
    with StopSignals() as stop:
        for number in range(len(log.records), trials):
            draws = choose(number, log.records, monitor)
            values = {d.key: d.at(draw) for d, draw in zip(dimensions, draws, strict=True)}
            note(f"trial {number + 1} of {trials}: {_shown(values)}")
            chosen = _with(settings, values).resolve()
            score, error = None, None
            try:
                result = run_training(chosen, files, stop, out_option=None)
                if result["best"] is None and not stop.requested():
                    raise ConfigError("tune needs rows to validate on: add --valid, --valid-share")
                score = result["best"] and result["best"]["value"]
            except NumericalError as raised:
                error = str(raised)
            stop.raise_if_requested()
            log.add({"settings": values, "draws": draws, "score": score, "error": error})
        best = _best_first(log.records, monitor)
        with replace_file(out / "best.toml") as draft:
            draft.write_text(as_toml(_with(settings, best[0]["settings"]).resolve()), "utf-8")
        emit({"best": best[0], "trials": log.records}, _describe(best, out), as_json)


def _with(settings: SettingOptions, values: dict[str, Any]) -> SettingOptions:
    entries = [Entry(key, value, f"--search {key}") for key, value in values.items()]
    return replace(settings, entries=[*settings.entries, *entries])


def _dimension(text: str) -> Dimension:
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
        raise ConfigError(f"--search {text}: log: goes with a range above 0")
    return Dimension(key.strip(), chosen, is_range, is_log)


Choose = Callable[[int, list[Record], str], list[float]]


def _random(dimensions: Sequence[Dimension], seed: int) -> Choose:
    def choose(number: int, *_: Any) -> list[float]:
        import numpy as np

        return np.random.default_rng([seed, number]).random(len(dimensions)).tolist()

    return choose


def _grid(dimensions: Sequence[Dimension], seed: int) -> Choose:
    ranges = [dimension.key for dimension in dimensions if dimension.is_range]
    if ranges:
        raise ConfigError(f"--search {ranges[0]}: a grid needs values, A,B,C, not a range")
    points = [*itertools.product(*map(_middles, dimensions))]
    return lambda number, *_: [*points[number]]


def _middles(dimension: Dimension) -> list[float]:
    """Draws that stand for each of the values."""
    count = len(dimension.values)
    return [(n + 0.5) / count for n in range(count)]


def _optuna(dimensions: Sequence[Dimension], seed: int) -> Choose:
    try:
        import optuna
    except ImportError:
        raise ConfigError("--sampler optuna: pip install 'sparsetrain[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = optuna.distributions
    space = {
        d.key: kinds.FloatDistribution(0, math.nextafter(1, 0))
        if d.is_range
        else kinds.CategoricalDistribution(_middles(d))
        for d in dimensions
    }

    def choose(number: int, records: list[Record], monitor: str) -> list[float]:
        study = optuna.create_study(
            direction="minimize" if _is_loss(monitor) else "maximize",
            sampler=optuna.samplers.TPESampler(seed=seed + number),
        )
        for record in records:
            if record["score"] is not None:
                params = dict(zip(space, record["draws"], strict=True))
                study.add_trial(
                    optuna.trial.create_trial(
                        params=params, distributions=space, value=record["score"]
                    )
                )
        drawn = study.ask(space).params
        return [float(drawn[key]) for key in space]

    return choose


_SAMPLERS = {"random": _random, "grid": _grid, "optuna": _optuna}


class _Log:
    """Trials that are over: a line each, behind one that says what is searched."""

    def __init__(self, folder: Path, search: Record) -> None:
        require_writable(folder / "trials.jsonl")
        self._path, self._search = folder / "trials.jsonl", search
        first, *self.records = self._read() or [search]
        if first != search and self.records:
            raise ConfigError(
                f"--out {folder}: it holds the trials of {_shown(first)}; name another folder"
            )
        self._write()  # before the first trial: can it be kept?

    def add(self, record: Record) -> None:
        """Keep a trial."""
        self.records.append(record)
        self._write()

    def _read(self) -> list[Record]:
        try:
            text = read_regular_file(self._path, _MOST_BYTES).decode()
            first, *records = lines = [json.loads(line) for line in text.splitlines()]
        except FileNotFoundError:
            return []
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
        except (ValueError, RecursionError):
            reason = "damaged"
        else:
            if isinstance(first, dict) and all(map(_is_record, records)):
                return lines
            reason = "damaged"
        raise ConfigError(f"{self._path}: {reason}; remove it, or name another folder")

    def _write(self) -> None:
        lines = (json.dumps(line) + "\n" for line in (self._search, *self.records))
        with replace_file(self._path) as draft:
            draft.write_text("".join(lines))


def _is_record(line: Any) -> bool:
    """Whether a line is that of a trial."""
    if not isinstance(line, dict) or line.keys() != {"settings", "draws", "score", "error"}:
        return False
    numbers = [*line["draws"]] if isinstance(line["draws"], list) else [None]
    numbers += [line["score"]] if line["score"] is not None else []
    are_numbers = all(type(number) in (int, float) for number in numbers)
    return are_numbers and isinstance(line["settings"], dict)


def _is_loss(monitor: str) -> bool:
    """Whether a smaller score is better."""
    import sparsetrain as st

    return st.EarlyStopping(monitor).is_better(0.0, 1.0)


def _best_first(records: list[Record], monitor: str) -> list[Record]:
    scored = [record for record in records if record["score"] is not None]
    if not scored:
        raise NumericalError("no trial has a score: every one had a number that is not finite")
    return sorted(scored, key=lambda record: record["score"], reverse=not _is_loss(monitor))


def _shown(values: Record) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _describe(best: list[Record], out: Path) -> str:
    keys = [*best[0]["settings"]]
    rows = [
        [
            format_score(r["score"], "{:.5f}"),
            *(f"{v:.4g}" if isinstance(v, float) else str(v) for v in r["settings"].values()),
        ]
        for r in best[:_SHOWN]
    ]
    table = format_table([["score", *keys], *rows])
    return f"{table}\n\nsparsetrain train TRAIN --config {out / 'best.toml'}"
