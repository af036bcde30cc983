# SPDX-License-Identifier: Apache-2.0
"""What depends on the make of this machine's processor, where no feature of it says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tvm.target import Target

from sparsetrain.runtime.host import host_target

Choice = TypeVar("Choice")


def by_processor(choices: Mapping[str, Choice], target: Target | None = None) -> Choice:
    """The choice for a processor, by the beginning of LLVM's name for it.

    Parameters
    ----------
    choices : mapping of str
        Tried in its order; ``""`` comes last and stands for all others.
    target : Target, optional
        By default this machine's, which also stands for one that names no processor.
    """
    named = [] if target is None else [target]
    names = (str(one.attrs.get("mcpu", "")) for one in (*named, host_target()))
    name = next(filter(None, names), "")
    return next(choice for start, choice in choices.items() if name.startswith(start))
