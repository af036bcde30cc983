# SPDX-License-Identifier: Apache-2.0
"""`--model MODULE:CLASS`: the class of a saved model that is not of this package.

It is imported because whoever types the command names it; nothing in a folder ever is. Modules are
looked for as Python does, then in the folder where the command runs.
"""

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from sparsetrain.errors import ConfigError

OwnClass = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODULE:CLASS",
        help="Class of a model of your own, in a module that is installed or lies here.",
    ),
]


def class_of(named: str | None) -> Any:
    """Import what the option names; None without one.

    Raises
    ------
    ConfigError
        If there is no such module or class, or the module raises while it is imported.
    """
    if named is None:
        return None
    module, colon, name = named.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"--model {named}: write MODULE:CLASS, such as my_models:DeepFM")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"--model {named}: {error}; it is neither installed nor here") from error
    except (Exception, SystemExit) as error:  # whatever the module raises
        raise ConfigError(f"--model {named}: {module} raises {error!r}") from error
    if not hasattr(found, name):
        raise ConfigError(f"--model {named}: {module} has no {name}")
    return getattr(found, name)
