# SPDX-License-Identifier: Apache-2.0
"""Exit codes and one-line messages of exceptions: a rule table."""

import re

import typer

from sparsetrain.cli.stop import Stopped
from sparsetrain.errors import DataError, ResourceError, SparsetrainError
from sparsetrain.system.file_locks import is_disk_full


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
    return 1, f"error: a fault of this package, please report it: {type(error).__name__}: {text}"


# Arguments of the library -> options of commands.
_OPTIONS = (
    (re.compile(r"load\(\.\.\., model=THE_CLASS\)"), "--model MODULE:CLASS"),
    (re.compile(r"\b(nan|treat_as)='(\w+)'"), r"--set data.\1=\2"),
    (re.compile(r"^error: checkpoint is\b"), "error: --checkpoint is"),
    (re.compile(r"\bprecision='(\w+)'"), r"--precision \1"),
    (re.compile(r"\bbad_rows='skip' or 'quarantine'"), "--bad-rows skip or quarantine"),
)


_OUT_OF_MEMORY = "error: out of memory; reduce train.batch_size, model.dim or data.max_rows"


def _is_out_of_memory(error: BaseException) -> bool:
    # TVM reports memory that it cannot get as an InternalError with this text.
    return isinstance(error, MemoryError) or "std::bad_alloc" in str(error)


def _usage(error: BaseException) -> str:
    text = error.format_message() if isinstance(error, typer.TyperException) else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "sparsetrain"
    return f"error: {text} (see {command} --help)"


def _system(error: BaseException) -> str:
    assert isinstance(error, OSError)
    return f"error: {error.filename or 'input or output'}: {error.strerror or error}"


# The first rule that matches an exception decides.
_RULES = (
    (lambda e: isinstance(e, SparsetrainError), lambda e: (e.exit_code, f"error: {e}")),
    (lambda e: isinstance(e, Stopped), lambda e: (128 + e.signum, f"stopped by {e.name}")),
    (lambda e: isinstance(e, typer.TyperException), lambda e: (2, _usage(e))),
    (_is_out_of_memory, lambda e: (ResourceError.exit_code, _OUT_OF_MEMORY)),
    (
        lambda e: isinstance(e, OSError) and is_disk_full(e),
        lambda e: (ResourceError.exit_code, _system(e)),
    ),
    (lambda e: isinstance(e, OSError), lambda e: (DataError.exit_code, _system(e))),
)
