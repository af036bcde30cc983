# SPDX-License-Identifier: Apache-2.0
"""Model classes by name: a class of this package, or your own as MODULE:CLASS.

A module is imported only if the user names it on the command line, never because a saved folder or
a settings file does. It is searched on Python's path, then in the current folder.
"""

import os
import sys
from importlib import import_module
from typing import Any

from sparsetrain.errors import ConfigError, nearest


def is_own(name: str) -> bool:
    """Return whether a name is of a user's own class."""
    return ":" in name


def canonical(name: Any) -> Any:
    """Return the name under which a run stores a model, for any spelling of a known name."""
    import sparsetrain as st

    return name if not isinstance(name, str) or is_own(name) else st.models.kind_of(name)


def model_class(name: str) -> Any:
    """Return the class of the model that `train --model` names.

    Raises
    ------
    ConfigError
        If there is no such model.
    """
    import sparsetrain as st

    known = st.models.MODELS
    found = import_class(name) if is_own(name) else known.get(canonical(name))
    if found is None:
        raise ConfigError(
            f"there is no model {name!r} (your own: MODULE:CLASS); {nearest(name, [*known])}"
        )
    if not (isinstance(found, type) and issubclass(found, st.models.Model)):
        raise ConfigError(f"--model {name}: it is {found!r:.60}, not a subclass of st.models.Model")
    return found


def import_class(named: str | None) -> Any:
    """Import the class that `--model` names; None without the option."""
    if named is None:
        return None
    module_name, colon, name = named.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"--model {named}: write MODULE:CLASS, such as my_models:DeepFM")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--model {named}: {error}; the module is neither installed nor in the current folder"
        ) from error
    except (Exception, SystemExit) as error:  # the module may raise any error
        raise ConfigError(f"--model {named}: {module_name} raises {error!r}") from error
    if not hasattr(module, name):
        raise ConfigError(f"--model {named}: {module_name} has no {name}")
    return getattr(module, name)
