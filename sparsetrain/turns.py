# SPDX-License-Identifier: Apache-2.0
"""One thread at a time builds Relax functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Made = TypeVar("Made")
_turn = RLock()


def in_turn(build: Callable[Given, Made]) -> Callable[Given, Made]:
    """Let one thread at a time run what opens a function of a `BlockBuilder`.

    TVM keeps the stack of open builders once for all threads: two that build at the same time would
    write into each other's functions.
    """

    @wraps(build)
    def built(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        with _turn:
            return build(*args, **kwargs)

    return built
