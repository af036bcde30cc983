# SPDX-License-Identifier: Apache-2.0
"""Resolution of layered settings into one checked `Settings`; errors name the source.

Later layers take precedence, key by key. Only `resolve_settings` knows their order.
"""

import difflib
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sparsetrain.cli.settings.schema import Settings, known_keys
from sparsetrain.cli.settings.sources import (
    UNSET,
    Entry,
    from_environment,
    from_file,
    from_overrides,
)
from sparsetrain.errors import ConfigError

_NO_VALUE = {"", "none", "null", "nil"}  # in lower case


def resolve_settings(
    file: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    options: Iterable[Entry] = (),
    overrides: Iterable[str] = (),
    base: Iterable[Entry] = (),
) -> Settings:
    """Return the settings in effect: defaults < base < file < environment < options < overrides.

    `base` has the settings that a resumed run started with.

    Examples
    --------
    >>> resolve_settings(overrides=["train.epochs=2"]).train.epochs
    2
    """
    layers = chain(
        base,
        from_file(file) if file is not None else (),
        from_environment(environ or {}, Settings.model_fields),
        options,
        from_overrides(overrides),
    )
    winners: dict[str, Entry] = {}
    for entry in layers:
        _require_known(entry)
        winners[entry.key] = entry
    winners = {key: entry for key, entry in winners.items() if entry.value is not UNSET}
    settings = _validate(winners)
    _require_options(settings, winners)
    return settings


def _validate(winners: Mapping[str, Entry]) -> Settings:
    tree: dict[str, dict[str, Any]] = {section: {} for section in Settings.model_fields}
    for entry in winners.values():
        section, key = entry.key.split(".")
        tree[section][key] = entry.value
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        raise ConfigError("; ".join(_describe(p, winners) for p in problems)) from error


def _describe(problem: ErrorDetails, winners: Mapping[str, Entry]) -> str:
    """Describe one of pydantic's errors by the setting and its source."""
    entry = winners[".".join(str(part) for part in problem["loc"][:2])]
    reason = problem["msg"].replace("Input should be", "must be").replace("valid tuple", "list")
    message = f"{entry.origin}: {entry.key} = {problem['input']!r} {reason}"
    if str(entry.value).lower() not in _NO_VALUE:
        return message
    section, key = entry.key.split(".")
    default = getattr(getattr(Settings(), section), key)
    effect = "leaves it unset" if default is None else f"restores its default, {default!r}"
    return f"{message}; --set {entry.key}= {effect}"


def _require_known(entry: Entry) -> None:
    known = known_keys()
    if entry.key in known:
        return
    nearest = _nearest(entry.key, known)
    hint = f"did you mean '{nearest}'?" if nearest else f"settings are {', '.join(known)}"
    raise ConfigError(f"{entry.origin}: unknown setting '{entry.key}'; {hint}")


def _nearest(key: str, known: list[str]) -> str | None:
    """Find the closest key by its whole name, then by its last part alone."""
    by_last_part = {name.split(".")[1]: name for name in known}
    whole = difflib.get_close_matches(key, known, n=1)
    last = difflib.get_close_matches(key.rpartition(".")[2], by_last_part, n=1)
    return whole[0] if whole else by_last_part[last[0]] if last else None


def _require_options(settings: Settings, winners: Mapping[str, Entry]) -> None:
    """Raise for settings that the formula, schedule or interaction would ignore or lacks."""
    for section in ("model", "optimizer"):
        for option, problem in getattr(settings, section).problems():
            raise ConfigError(f"{winners[f'{section}.{option}'].origin}: {problem}")
