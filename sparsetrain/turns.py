# SPDX-License-Identifier: Apache-2.0
"""One thread at a time builds and rewrites Relax functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Made = TypeVar("Made")
_turn = RLock()


def in_turn(build: Callable[Given, Made]) -> Callable[Given, Made]:
    """Let one thread at a time run what opens a function of a `BlockBuilder`, or lowers operators.

    TVM keeps the stack of open builders once for all threads: two that build at the same time would
    write into each other's functions. So it does with the tag of the operator that is described.
    """

    @wraps(build)
    def built(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        with _turn:
            return build(*args, **kwargs)

    return built
