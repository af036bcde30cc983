# SPDX-License-Identifier: Apache-2.0
"""The command line: commands, and the exit codes of errors."""

import atexit
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer

import sparsetrain
from sparsetrain.cli import (
    compare,
    convert,
    demo,
    doctor,
    export,
    inspect,
    listings,
    plot,
    predict,
    processes,
    schema,
    train,
    tune,
    verify,
)
from sparsetrain.cli.import_arrow import import_arrow
from sparsetrain.cli.options import GroupedCommand, GroupedCommands
from sparsetrain.cli.output import data_warnings_as_notes, escape_controls, open_streams
from sparsetrain.cli.ranking.recommend import recommend
from sparsetrain.cli.report import report
from sparsetrain.cli.stop import Stopped
from sparsetrain.errors import (
    ConfigError,
    DataError,
    ParallelError,
    ResourceError,
    SparsetrainError,
)
from sparsetrain.system.file_locks import is_disk_full
from sparsetrain.system.launcher import is_first

app = typer.Typer(
    cls=GroupedCommands,
    help="Train recommendation models on Apache TVM with row-sparse gradients. Add --traceback to "
    "any command, or set SPARSETRAIN_TRACEBACK=1, to see the traceback of an error.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_COMMANDS: dict[str, tuple[Any, ...]] = {
    "Train": (train.train, tune.tune, demo.demo),
    "Data": (schema.schema, convert.convert, demo.generate),
    "Look at data and runs": (
        report,
        plot.plot,
        inspect.inspect,
        listings.models,
        listings.settings,
    ),
    "Predict and serve": (predict.evaluate, predict.predict, recommend, export.export)
    + (export.apply, export.serve, export.quantize),
    "Measure and check": (compare.compare, verify.verify, doctor.doctor),
}
for _title, _commands in _COMMANDS.items():
    for _command in _commands:
        app.command(_command.__name__, cls=GroupedCommand, rich_help_panel=_title)(_command)

_WITHOUT_DATA = ("--help", "--version", "compare", "doctor", "models", "plot", "settings")


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
        Arguments after the program's name; `sys.argv[1:]` by default.

    Returns
    -------
    int
        Exit code: 0 success, 2 usage or configuration, 3 data, 4 checkpoint, 5 numerical,
        6 resources, 130 or 143 stopped by a signal, 1 a bug in this package.
    """
    open_streams()
    texts = list(sys.argv[1:] if arguments is None else arguments)
    wanted = os.environ.get("SPARSETRAIN_TRACEBACK", "").lower() not in ("", "0", "false", "no")
    show_traceback = wanted or "--traceback" in texts
    texts = [text for text in texts if text != "--traceback"]
    try:
        if "" in texts:  # an empty path would mean the current folder
            raise ConfigError("an argument is empty; is a shell variable not set?")
        command = next((text for text in texts if not text.startswith("-")), "train")
        with processes.guard(command), data_warnings_as_notes():
            code = app(texts, prog_name="sparsetrain", standalone_mode=False) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has exited, for example `head`; Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, Stopped) as error:
        if show_traceback:
            traceback.print_exc()
        code, message = explain(error)
        if isinstance(error, ParallelError) and not is_first():
            return code
        _print_error(f"sparsetrain: {processes.whose()}{message}")
        return code


def run_and_exit() -> NoReturn:
    """Run the command of `sys.argv`, and end the process.

    It ends by `os._exit`, since C's `exit` would wait for TVM's threads until they have yielded
    300,000 times, which takes an hour on a machine with many busy processes.
    """
    if sys.argv[1:] and sys.argv[1] not in _WITHOUT_DATA and "--help" not in sys.argv:
        import_arrow()
    code = main()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # the stream is closed or absent
            stream.flush()
    os._exit(code)


def _print_error(message: str) -> None:
    try:
        print(escape_controls(message), file=sys.stderr, flush=True)
    except OSError:  # for example, a full disk; Python would complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the message, which is always a single line."""
    for matches, say in _RULES:
        if matches(error):
            code, message = say(error)
            message = " ".join(message.split())
            for argument, option in _OPTIONS:
                message = argument.sub(option, message)
            return code, message
    text = " ".join(str(error).split())
    return 1, f"error: a bug in this package, please report it: {type(error).__name__}: {text}"


# In messages, arguments of the library are replaced by options of commands.
_OPTIONS = (
    (re.compile(r"load\(\.\.\., model=THE_CLASS\)"), "--model MODULE:CLASS"),
    (re.compile(r"\b(nan|treat_as)='(\w+)'"), r"--set data.\1=\2"),
    (re.compile(r"^error: checkpoint is\b"), "error: --checkpoint is"),
    (re.compile(r"\bprecision='(\w+)'"), r"--precision \1"),
    (re.compile(r"\bbad_rows='skip' or 'quarantine'"), "--bad-rows skip or quarantine"),
)


_OUT_OF_MEMORY = "error: out of memory; reduce train.batch_size, model.dim or data.max_rows"


def _is_out_of_memory(error: BaseException) -> bool:
    # TVM reports failed allocations as an InternalError with this text.
    return isinstance(error, MemoryError) or "std::bad_alloc" in str(error)


def _usage(error: BaseException) -> str:
    text = error.format_message() if isinstance(error, typer.TyperException) else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "sparsetrain"
    return f"error: {text} (see {command} --help)"


def _system(error: BaseException) -> str:
    assert isinstance(error, OSError)
    return f"error: {error.filename or 'input or output'}: {error.strerror or error}"


def _is_odd_name(error: BaseException) -> bool:
    # Python decodes the bytes of a path that are not UTF-8 as surrogates.
    return isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed"


def _odd_name(error: BaseException) -> str:
    assert isinstance(error, UnicodeEncodeError)
    near = error.object[max(0, error.start - 40) : error.end + 40]
    return f"error: {ascii(near)}: the name is not UTF-8; rename the file or folder"


# The first rule that matches an exception decides.
_RULES = (
    (lambda e: isinstance(e, SparsetrainError), lambda e: (e.exit_code, f"error: {e}")),
    (lambda e: isinstance(e, Stopped), lambda e: (128 + e.signum, f"stopped by {e.name}")),
    (lambda e: isinstance(e, typer.TyperException), lambda e: (2, _usage(e))),
    (_is_out_of_memory, lambda e: (ResourceError.exit_code, _OUT_OF_MEMORY)),
    (_is_odd_name, lambda e: (ConfigError.exit_code, _odd_name(e))),
    (
        lambda e: isinstance(e, OSError) and is_disk_full(e),
        lambda e: (ResourceError.exit_code, _system(e)),
    ),
    (lambda e: isinstance(e, OSError), lambda e: (DataError.exit_code, _system(e))),
)
