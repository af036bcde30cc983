# SPDX-License-Identifier: Apache-2.0
"""A run in a sentence, the command that repeats it, and the settings that were chosen."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from sparsetrain.cli.output import by_label, flat
from sparsetrain.cli.report.facts import Facts
from sparsetrain.cli.settings import Settings, settings_of
from sparsetrain.cli.settings.fields import flags_of
from sparsetrain.cli.settings.model_class import is_own
from sparsetrain.cli.settings.resolve import parse_text
from sparsetrain.errors import ConfigError
from sparsetrain.training.progress import format_count

# Scores to name in a sentence.
_SCORES = {"auc": "AUC", "gauc": "gAUC", "logloss": "logloss", "rmse": "RMSE"}


def sentence(run: Facts) -> str:
    """Describe the model, its labels, its training and its last validation in a sentence."""
    manifest = run.manifest
    model, optimizer = manifest.get("model") or {}, manifest.get("optimizer") or {}
    if not model:
        return "This run has saved no model yet."
    labels = [*((model.get("config") or {}).get("labels") or {})]
    predicts = f" predicts {' and '.join(labels)}" if labels else ""
    files = _files(manifest).get("train") or []
    source = f" on {', '.join(map(str, files))}" if files else ""
    steps = manifest.get("steps") or 0
    trained = f"trained by {optimizer['name']}{source}: " if optimizer else ""
    epochs = format_count(manifest.get("epochs") or 0, "epoch")
    text = f"{str(model['kind']).upper()}{predicts}, {trained}{epochs}, {steps:,} steps."
    state = manifest.get("run") or {}
    scores = list(_scores(state.get("scores") or {}, (state.get("plan") or {}).get("group_by")))
    return f"{text} Last validation: {', '.join(scores)}." if scores else text


def _scores(scores: Mapping[str, Any], group_by: str | None) -> Iterator[str]:
    for label, own in by_label(scores).items():
        for name, title in _SCORES.items():
            if own.get(name) is not None:
                by = f" by {group_by}" if name == "gauc" and group_by else ""
                yield f"{f'{label} ' if label else ''}{title}{by} {own[name]:.4f}"


def command(run: Facts) -> str | None:
    """Return the command that repeats a run; None if no command made it."""
    settings, files = _settings(run.manifest), _files(run.manifest)
    if settings is None or not files.get("train"):
        return None
    words = ["sparsetrain", "train", *map(str, files["train"])]
    for name in ("valid", "test"):
        if files.get(name):
            words += [f"--{name}", str(files[name])]
    default = at_default(run.manifest)
    flags, known = flags_of(_declared(settings)), flat(_declared(settings)().to_dict())
    options = {flag.key: flag.name for flag in flags if flag.type is not bool}
    for key, value in flat(settings).items():
        if key in default or (value is None and key not in known):
            continue
        text = _as_text(value)
        plain = key in options and not isinstance(value, (list, dict))
        words += [options[key], text] if plain else ["--set", f"{key}={text}"]
    return shlex.join([*words, "--out", "again"])


def at_default(manifest: Mapping[str, Any]) -> set[str]:
    """Return the names, with dots, of a command's settings that have their defaults."""
    settings = _settings(manifest)
    if settings is None:
        return set()
    defaults = flat(_declared(settings)().to_dict())
    own = flat(settings)
    return {name for name in own if name in defaults and defaults[name] == own[name]}


def _settings(manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    settings = (manifest.get("extra") or {}).get("settings")
    return settings if isinstance(settings, dict) else None


def _files(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return (manifest.get("extra") or {}).get("files") or {}


def _declared(settings: Mapping[str, Any]) -> type[Settings]:
    name = (settings.get("model") or {}).get("name")
    try:
        return Settings if is_own(str(name)) else settings_of(name)
    except ConfigError:  # not a model of this package
        return Settings


def _as_text(value: Any) -> str:
    """Return a value as text for `--set`."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value if parse_text(value) == value else json.dumps(value)
    return json.dumps(value)
