# SPDX-License-Identifier: Apache-2.0
"""Summary of a model, for `print` and notebooks: its tables and layers, with parameters and MB."""

from __future__ import annotations

from math import prod
from typing import Any

from sparsetrain.kernels.table_formats import format_of
from sparsetrain.models.layers import named_modules
from sparsetrain.system.html import escape, table
from sparsetrain.system.text import aligned

_HEAD = ("", "kind", "shape", "parameters", "MB")


def title_of(model: Any) -> str:
    """Return a model's class, its number of parameters and their size."""
    arrays = [(_shape(param), _itemsize(param)) for _, param in model.named_parameters()]
    count = sum(prod(shape) for shape, _ in arrays)
    size = sum(prod(shape) * itemsize for shape, itemsize in arrays)
    return f"{type(model).__name__}: {count:,} parameters, {size / 1e6:,.2f} MB"


def as_text(model: Any) -> str:
    """Return the lines of a summary."""
    return "\n".join([title_of(model), *aligned([_HEAD, *_lines(model)])])


def as_html(model: Any) -> str:
    """Return a summary in HTML, for a notebook."""
    return f"<b>{escape(title_of(model))}</b>\n{table(_lines(model), _HEAD)}"


def _lines(model: Any) -> list[tuple[str, ...]]:
    """Return a line for each table, then for each layer with parameters."""
    tables, modules = model.tables(), dict(named_modules(model))
    lines: list[tuple[str, ...]] = []
    layers: dict[str, list[Any]] = {}
    for name, param in model.named_parameters():
        if name not in tables:
            layers.setdefault(name.rpartition(".")[0], []).append(param)
        for part, rows in tables.get(name, {}).items():
            shape = rows.stop - rows.start, *_shape(param)[1:]
            lines.append(_line(part, "table", [shape], _itemsize(param)))
    for layer, params in layers.items():
        kind = type(modules.get(layer, model)).__name__
        lines.append(_line(layer, kind, [*map(_shape, params)], _itemsize(params[0])))
    return lines


def _line(name: str, kind: str, shapes: list[tuple[int, ...]], itemsize: int) -> tuple[str, ...]:
    count = sum(map(prod, shapes))
    shown = ", ".join(" x ".join(f"{extent:,}" for extent in shape) for shape in shapes)
    return name, kind, shown, f"{count:,}", f"{count * itemsize / 1e6:,.2f}"


def _shape(param: Any) -> tuple[int, ...]:
    return tuple(map(int, param.shape))


def _itemsize(param: Any) -> int:
    return format_of(str(param.dtype)).array.itemsize
