# SPDX-License-Identifier: Apache-2.0
"""What a package gives: the names that its ``__init__`` imports, without its modules."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any


def exported(names: Mapping[str, Any]) -> list[str]:
    """``__all__`` of the package with these globals; `help` describes what stands there alone."""
    return sorted(
        name
        for name, value in names.items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    )
