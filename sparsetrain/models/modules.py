# SPDX-License-Identifier: Apache-2.0
"""Layers within a layer, by the names that their parameters have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tvm.relax.frontend import nn


def named_modules(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield a module under the name `prefix`, and all below it: ``("top.layers.0", Linear)``."""
    yield prefix, module
    for name, child in _children(module):
        yield from named_modules(child, f"{prefix}.{name}" if prefix else name)


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, nn.ModuleList):
        yield from ((str(number), child) for number, child in enumerate(module))
        return
    for name, value in vars(module).items():
        for key, item in _items(value):
            if isinstance(item, nn.Module):
                yield f"{name}{key}", item


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return ((f".{key}", item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ((f".{number}", item) for number, item in enumerate(value))
    return iter([("", value)])
