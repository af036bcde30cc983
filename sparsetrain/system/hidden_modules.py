# SPDX-License-Identifier: Apache-2.0
"""Optional modules, hidden from one thread while it imports modules that use them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident


class _Hider:
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names, self._thread = names, get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        if name in self._names and get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is left out of this import", name=name)


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """Hide modules from imports in this thread, unless they are already imported."""
    finder = _Hider(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
