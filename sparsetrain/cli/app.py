# SPDX-License-Identifier: Apache-2.0
"""The command line: its commands, and exit codes of what they raise."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

import sparsetrain
from sparsetrain.cli import (
    compare,
    convert,
    demo,
    doctor,
    generate,
    inspect,
    plot,
    predict,
    quantize,
    settings_command,
    train,
)
from sparsetrain.cli.exit_codes import explain
from sparsetrain.cli.options import GroupedCommand
from sparsetrain.cli.output import open_streams
from sparsetrain.cli.stop import Stopped
from sparsetrain.errors import ConfigError

app = typer.Typer(
    help="Train recommendation models on Apache TVM with row-sparse gradients. Add --traceback to "
    "any command, or set SPARSETRAIN_TRACEBACK=1, to see the traceback of an error.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command in (
    *(demo.demo, train.train, predict.evaluate, predict.predict, quantize.quantize),
    *(convert.convert, inspect.inspect, generate.generate, plot.plot, compare.compare),
    *(settings_command.settings, doctor.doctor),
):
    app.command(_command.__name__, cls=GroupedCommand)(_command)


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
        130 or 143 stopped by a signal, 1 a bug in this package.
    """
    open_streams()
    texts = list(sys.argv[1:] if arguments is None else arguments)
    wanted = os.environ.get("SPARSETRAIN_TRACEBACK", "").lower() not in ("", "0", "false", "no")
    show_traceback = wanted or "--traceback" in texts
    texts = [text for text in texts if text != "--traceback"]
    try:
        if "" in texts:  # an empty path would be the current folder
            raise ConfigError("an argument is empty; is a shell variable not set?")
        code = app(texts, prog_name="sparsetrain", standalone_mode=False) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, Stopped) as error:
        if show_traceback:
            traceback.print_exc()
        code, message = explain(error)
        _print_error(f"sparsetrain: {message}")
        return code


def _print_error(message: str) -> None:
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:  # such as a log on a full disk; Python would complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
