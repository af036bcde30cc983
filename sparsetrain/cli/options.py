# SPDX-License-Identifier: Apache-2.0
"""Options shared by commands, and options generated from declared settings.

A setting with a flag (see `settings.fields`) becomes an option of every command decorated with
`with_settings`; its text is parsed and checked as from any other source of settings.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sparsetrain.cli.settings import Settings, resolve_settings
from sparsetrain.cli.settings.fields import Flag, flags_of
from sparsetrain.cli.settings.resolve import Entry, parse_text

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
BatchSize = Annotated[
    int, typer.Option("--batch-size", min=1, help="Rows per batch; changes speed, not results.")
]
_Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Set any setting that `sparsetrain settings` lists; takes precedence over "
        "everything else. Without VALUE: its default.",
    ),
]
_Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings in TOML or YAML.")
]

_FLAGS = {flag.name: flag for flag in flags_of(Settings)}
_PANELS = {"data": "Data", "model": "Model", "optimizer": "Optimizer", "train": "Training"}


@dataclass(frozen=True)
class SettingOptions:
    """Settings from a command line, not yet resolved."""

    entries: Sequence[Entry] = ()  # from the settings' own options
    config: Path | None = None  # settings file
    overrides: Sequence[str] = ()  # from `--set`

    def resolve(self, base: Iterable[Entry] = ()) -> Settings:
        """Return the settings in effect; `base` has the lowest precedence."""
        return resolve_settings(self.config, os.environ, self.entries, self.overrides, base)

    def flags(self) -> list[str]:
        """Return the names of the options that were used."""
        return [entry.origin for entry in self.entries]


def setting_type(name: str) -> Any:
    """Return the type annotation of a command's parameter for an option such as ``--schema``."""
    flag = _FLAGS[name]
    default = "" if flag.default in (None, False) else f"  [default: {flag.default}]"
    option = typer.Option(
        flag.name,
        metavar=None if flag.type is bool else flag.metavar,
        help=flag.help + default,
        rich_help_panel=_PANELS[flag.key.partition(".")[0]],
    )
    return Annotated[(bool if flag.type is bool else str) | None, option]


def with_settings(
    *names: str, exclude: str = "", own: bool = True, general: bool = True
) -> Callable[[Callable[..., None]], Any]:
    """Decorate a command: options of settings take the place of its parameter `settings`.

    These are the options `names`, by default all except `exclude`, or none if `own` is False; with
    `general`, also `--set` and `--config`.
    """
    chosen = [_FLAGS[name] for name in names or _FLAGS if own and name != exclude]

    def decorate(command: Callable[..., None]) -> Any:
        declared = inspect.signature(command, eval_str=True).parameters.values()
        generated = [_parameter(flag.key, setting_type(flag.name)) for flag in chosen]
        if general:
            generated += [_parameter("overrides", _Overrides), _parameter("config", _Config)]

        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            entries = [
                Entry(flag.key, _parse(flag, value), flag.name)
                for flag in chosen
                if (value := arguments.pop(_name(flag.key))) is not None
            ]
            sources = arguments.pop("config", None), arguments.pop("overrides", None) or ()
            command(settings=SettingOptions(entries, *sources), **arguments)

        parameters = [*(p for p in declared if p.name != "settings"), *generated]
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=Parameter.KEYWORD_ONLY) for p in parameters]
        )
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _parameter(key: str, annotation: Any) -> Parameter:
    return Parameter(_name(key), Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _name(key: str) -> str:
    return key.replace(".", "__")


def _parse(flag: Flag, value: Any) -> Any:
    return parse_text(value) if flag.type is object else value


class GroupedCommand(TyperCommand):
    """A command that lists options in groups in its help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then the options of each group in order of declaration."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                panel = getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault("Arguments" if argument else panel, []).append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class GroupedCommands(TyperGroup):
    """Lists commands in groups, each with its whole summary."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each group in order of declaration."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            assert isinstance(command, GroupedCommand)
            summary = (command.help or "").partition("\n\n")[0].replace("\n", " ")
            groups.setdefault(str(command.rich_help_panel), []).append((name, summary))
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)
