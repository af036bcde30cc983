# SPDX-License-Identifier: Apache-2.0
"""Resolution of layered settings into one checked `Settings`; errors name the source.

Each source (a file, the environment, options and `--set`) yields `Entry` values with their origin.
Later layers take precedence, key by key; only `resolve_settings` defines their order. No source can
hold code: files are TOML, or YAML read by its safe loader.
"""

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sparsetrain.cli.settings.fields import fields_of
from sparsetrain.cli.settings.model_class import is_own
from sparsetrain.cli.settings.schema import ModelSettings, Settings, settings_of
from sparsetrain.errors import ConfigError, meant
from sparsetrain.system.regular_files import read_regular_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENVIRONMENT_PREFIX = "SPARSETRAIN_"
_MAX_BYTES = 16 << 20  # most bytes of a settings file
MODEL = "model.name"  # decides the model section's contents
UNSET = object()  # a value that restores the default
_NO_VALUE = {"", "none", "null", "nil"}  # in lower case


class Entry(NamedTuple):
    """One setting as written: `section.key`, its value, and its source."""

    key: str
    value: Any
    origin: str


def resolve_settings(
    file: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    options: Iterable[Entry] = (),
    overrides: Iterable[str] = (),
    base: Iterable[Entry] = (),
) -> Settings:
    """Return the settings in effect: defaults < base < file < environment < options < overrides.

    `base` has the settings of a resumed run.
    """
    layers = chain(
        from_file(file) if file is not None else (),
        from_environment(environ or {}, Settings.model_fields),
        options,
        from_overrides(overrides),
    )
    stored, entries = [*base], [*layers]
    kind = _kind_of(_winners([*stored, *entries]))
    known = [key for key, _ in fields_of(kind)]
    # If the run has a different model, its model settings are unknown: `resume` reports that.
    kept = [e for e in stored if e.key in known or not e.key.startswith("model.")]
    entries = [*kept, *entries]
    for entry in entries:
        _require_known(entry, known)
    winners = _winners(entries)
    settings = _validate(kind, winners)
    for section in ("data", "optimizer"):
        for option, problem in getattr(settings, section).problems():
            raise ConfigError(f"{winners[f'{section}.{option}'].origin}: {problem}")
    settings.model.check()
    return settings


def _winners(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return the last entry per key, without entries that restore the default."""
    last = {entry.key: entry for entry in entries}
    return {key: entry for key, entry in last.items() if entry.value is not UNSET}


def _kind_of(winners: Mapping[str, Entry]) -> type[Settings]:
    """Return the settings class for the named model."""
    named = winners.get(MODEL)
    name = ModelSettings().name if named is None else str(named.value)
    if named and is_own(name) and named.origin not in ("--model", "--set"):
        raise ConfigError(
            f"{named.origin}: {MODEL} is {name!r}, your own class, which is imported only if the "
            f"command line names it: add --model {name}"
        )
    try:
        return settings_of(name)
    except ConfigError as error:
        if is_own(name):  # the message already names it
            raise
        raise ConfigError(f"{named.origin if named else MODEL}: {error}") from None


def _validate(kind: type[Settings], winners: Mapping[str, Entry]) -> Settings:
    tree: dict[str, dict[str, Any]] = {section: {} for section in Settings.model_fields}
    for entry in winners.values():
        section, key = entry.key.split(".")
        tree[section][key] = entry.value
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        problems = _of_given_kind(error.errors(include_url=False, include_context=False))
        raise ConfigError("; ".join(_describe(p, kind, winners) for p in problems)) from error


def _of_given_kind(problems: list[ErrorDetails]) -> list[ErrorDetails]:
    """Where a setting accepts a number or a table, keep the errors of the kind that was given."""
    settings = [problem["loc"][:2] for problem in problems]
    return [
        problem
        for problem in problems
        if settings.count(problem["loc"][:2]) == 1
        or not (problem["type"] in _NO_TABLE or isinstance(problem["input"], Mapping))
    ]


_NO_TABLE = ("dict_type", "mapping_type")


def _describe(problem: ErrorDetails, kind: type[Settings], winners: Mapping[str, Entry]) -> str:
    """Describe one of pydantic's errors by the setting and its source."""
    entry = winners[".".join(str(part) for part in problem["loc"][:2])]
    reason = problem["msg"].replace("Input should be", "must be").replace("valid tuple", "list")
    names = re.findall("'([^']*)'", reason) if problem["type"] == "literal_error" else []
    if problem["type"] == "score":
        names = reason.partition(": ")[2].split(", ")
    part = f" of {problem['loc'][-1]!r}" if len(problem["loc"]) > 3 else ""
    message = f"{entry.origin}: {entry.key}{part} = {problem['input']!r} {reason}"
    message += meant(str(problem["input"]), names)
    if str(entry.value).lower() not in _NO_VALUE:
        return message
    section, key = entry.key.split(".")
    default = getattr(getattr(kind(), section), key)
    effect = "leaves it unset" if default is None else f"restores its default, {default!r}"
    return f"{message}; --set {entry.key}= {effect}"


def _require_known(entry: Entry, known: list[str]) -> None:
    if entry.key in known:
        return
    nearest = _nearest(entry.key, known)
    hint = f"did you mean '{nearest}'?" if nearest else f"settings are {', '.join(known)}"
    raise ConfigError(f"{entry.origin}: unknown setting '{entry.key}'; {hint}")


def _nearest(key: str, known: list[str]) -> str | None:
    """Find the closest key by its whole name, or else by its last part."""
    by_last_part = {name.split(".")[1]: name for name in known}
    whole = difflib.get_close_matches(key, known, n=1)
    last = difflib.get_close_matches(key.rpartition(".")[2], by_last_part, n=1)
    return whole[0] if whole else by_last_part[last[0]] if last else None


def from_file(path: str | Path) -> Iterator[Entry]:
    """Yield the settings of a file, in TOML or YAML by its suffix."""
    path = Path(path)
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ConfigError(f"{path}: unsupported file type: use {', '.join(_PARSERS)}")
    try:
        document = parse(path, read_regular_file(path, _MAX_BYTES).decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot read settings: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: settings must be UTF-8 text") from error
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path}: expected sections such as [train] with keys under them")
    for section, table in document.items():
        if isinstance(table, Mapping) and table:
            yield from (Entry(f"{section}.{key}", value, str(path)) for key, value in table.items())
        elif table is not None:
            yield Entry(str(section), table, str(path))


def from_environment(environ: Mapping[str, str], sections: Iterable[str]) -> Iterator[Entry]:
    """Yield the settings among environment variables: `SPARSETRAIN_<SECTION>__<KEY>`.

    Settings need two underscores, so variables such as `SPARSETRAIN_TRACEBACK` are ignored. A
    single underscore after a section is an error, since the variable would be ignored silently.
    """
    sections = tuple(sections)
    for name in sorted(environ):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        rest = name.removeprefix(ENVIRONMENT_PREFIX).lower()
        section, _, key = rest.partition("_")
        if "__" in rest:
            key = rest.replace("__", ".", 1)
            yield Entry(key, parse_text(environ[name]), f"environment variable {name}")
        elif section in sections and key:
            right = f"{ENVIRONMENT_PREFIX}{section}__{key}".upper()
            raise ConfigError(
                f"environment variable {name}: two underscores follow the section: {right}"
            )


def from_overrides(overrides: Iterable[str]) -> Iterator[Entry]:
    """Yield the settings of `section.key=value` texts; an empty value is `UNSET`."""
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"--set {text}: expected section.key=value, as in train.epochs=2; section.key= for "
                "its default"
            )
        value = value.strip()
        yield Entry(key.strip(), parse_text(value) if value else UNSET, "--set")


def parse_text(text: str) -> Any:
    """Parse text as a TOML value, `1,2` as a list, or `none`; else return the text itself."""
    if text == "none":
        return None
    for candidate in (text, f"[{text}]") if "," in text else (text,):
        try:
            document = tomllib.loads(f"value = {candidate}")
        except (ValueError, RecursionError):
            continue
        if len(document) == 1:
            return document["value"]
    return text


def _parse_toml(path: Path, text: str) -> Any:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for numbers with too many digits
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _parse_yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(
            f"{path}: reading YAML needs PyYAML: pip install 'sparsetrain[yaml]', or use TOML"
        ) from error

    class Loader(yaml.SafeLoader):
        """Refuses duplicate keys; PyYAML would silently use the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if str(key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"duplicate key {key.value!r}", key.start_mark
                    )
                seen.add(str(key.value))
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader) or {}  # noqa: S506 (derived from the safe loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


_PARSERS = {".toml": _parse_toml, ".yaml": _parse_yaml, ".yml": _parse_yaml}
