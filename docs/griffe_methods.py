# SPDX-License-Identifier: Apache-2.0
"""Methods that a class takes from functions of other files: ``fit = fitted(fit)``.

Griffe does not run the package, so it finds attributes without docstrings there. This extension
puts the functions in their place; mkdocs.yml names it.
"""

from __future__ import annotations

from typing import Any

import griffe


class Methods(griffe.Extension):
    """Replaces such attributes by the functions that they are made of."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Replace the attributes of all classes."""
        _replace(pkg)


def _replace(owner: Any) -> None:
    for name, member in [*owner.members.items()]:
        if member.is_alias:
            continue
        if member.is_module or member.is_class:
            _replace(member)
        elif member.is_attribute and owner.is_class and not name.startswith("_"):
            found = _function_of(member.value, owner)
            if found is not None:
                made = griffe.Function(name, parameters=found.parameters, returns=found.returns)
                made.docstring = found.docstring
                owner.set_member(name, made)


def _function_of(value: Any, owner: Any) -> Any:
    """Return the package's function in ``wraps(wraps(function))``, or by its name alone."""
    while isinstance(value, griffe.ExprCall) and len(value.arguments) == 1:
        value = value.arguments[0]
    try:
        if isinstance(value, griffe.ExprAttribute):
            found = owner.modules_collection[value.canonical_path]
        elif isinstance(value, griffe.ExprName):
            found = owner.module.members[value.name].final_target
        else:
            return None
    except (AttributeError, KeyError, griffe.AliasResolutionError):
        return None
    return found if found.is_function and found.has_docstring else None
