# SPDX-License-Identifier: Apache-2.0
"""Public names of a package: the imports of its ``__init__``, without its modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def public_names(
    names: Mapping[str, Any], *internal: str
) -> tuple[list[str], Callable[[], list[str]]]:
    """Return ``__all__`` and ``__dir__`` for a package with these globals.

    `internal` names are left out: only modules of the package use them.
    """
    public = sorted(
        name
        for name, value in names.items()
        if not (name.startswith("_") or name in internal or isinstance(value, ModuleType))
    )
    return public, lambda: public
