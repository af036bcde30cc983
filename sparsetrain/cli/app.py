# SPDX-License-Identifier: Apache-2.0
"""Puts the commands together, runs one, and turns whatever it raises into an exit code."""

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

import sparsetrain
from sparsetrain.cli import (
    compare,
    convert,
    demo,
    doctor,
    evaluate,
    generate,
    inspect,
    plot,
    predict,
    quantize,
    show_settings,
    train,
)
from sparsetrain.cli.failure import explain
from sparsetrain.cli.stop import Stopped
from sparsetrain.cli.streams import open_streams
from sparsetrain.errors import ConfigError

app = typer.Typer(
    help="Train recommendation models on Apache TVM with row-sparse gradients. Add --traceback to "
    "any command, or set SPARSETRAIN_TRACEBACK=1, to see where an error comes from.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("quantize")(quantize.quantize)
app.command("convert")(convert.convert)
app.command("inspect")(inspect.inspect)
app.command("generate")(generate.generate)
app.command("plot")(plot.plot)
app.command("compare")(compare.compare)
app.command("settings")(show_settings.settings)
app.command("doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(sparsetrain.__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the program's name; `sys.argv[1:]` by default.

    Returns
    -------
    int
        0 done, 2 usage or configuration, 3 data, 4 checkpoint, 5 numerical, 6 resources,
        130 or 143 stopped by a signal, 1 a fault of this package.
    """
    open_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    show_traceback = "--traceback" in given or _is_on("SPARSETRAIN_TRACEBACK", os.environ)
    given = [argument for argument in given if argument != "--traceback"]
    try:
        if "" in given:  # a path that is empty would be the folder where one is
            raise ConfigError("an argument is empty; is a variable of the shell not set?")
        code = app(given, prog_name="sparsetrain", standalone_mode=False) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read our output has left, as `head` does. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, Stopped) as error:
        if show_traceback:
            traceback.print_exc()
        code, message = explain(error)
        _tell(f"sparsetrain: {message}")
        return code


def _tell(message: str) -> None:
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:  # as of a log on a disk that is full; Python would complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _is_on(name: str, environ: Mapping[str, str]) -> bool:
    return environ.get(name, "").lower() not in ("", "0", "false", "no")
