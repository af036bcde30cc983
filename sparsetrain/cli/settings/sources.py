# SPDX-License-Identifier: Apache-2.0
"""Sources of settings: a file, the environment, `--set`. Each yields `Entry` values.

Nothing is checked against the schema here; an entry keeps its origin for error messages. No source
can hold code: TOML, and YAML by its safe loader.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sparsetrain.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENVIRONMENT_PREFIX = "SPARSETRAIN_"
UNSET = object()  # a value that restores the default


class Entry(NamedTuple):
    """One setting as written: `section.key`, its value, and its source."""

    key: str
    value: Any
    origin: str


def from_file(path: str | Path) -> Iterator[Entry]:
    """Yield the settings of a file; its suffix says whether it is TOML or YAML."""
    path = Path(path)
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ConfigError(f"{path}: a settings file ends in {', '.join(_PARSERS)}")
    try:
        document = parse(path, path.read_text(encoding="utf-8"))
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

    Only two underscores make a variable a setting, so `SPARSETRAIN_TRACEBACK` and the like are
    ignored. A section followed by one underscore is an error, since it would go unnoticed.
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
    """Yield the settings of `section.key=value` texts; with nothing behind `=` it is `UNSET`."""
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
    """Parse a text: a TOML value, `1,2` as a list, `none`, else the text itself.

    Examples
    --------
    >>> parse_text("3"), parse_text("64,32"), parse_text("adagrad"), parse_text("none")
    (3, [64, 32], 'adagrad', None)
    """
    if text == "none":
        return None
    for candidate in (text, f"[{text}]") if "," in text else (text,):
        try:
            document = tomllib.loads(f"value = {candidate}")
        except tomllib.TOMLDecodeError:
            continue
        if len(document) == 1:
            return document["value"]
    return text


def _parse_toml(path: Path, text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _parse_yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(
            f"{path}: reading YAML needs PyYAML: pip install 'sparsetrain[yaml]', or use TOML"
        ) from error
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


_PARSERS = {".toml": _parse_toml, ".yaml": _parse_yaml, ".yml": _parse_yaml}
