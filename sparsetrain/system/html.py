# SPDX-License-Identifier: Apache-2.0
"""HTML tables for notebooks and reports. All text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any


class Markup(str):
    """Text that is already HTML."""


def escape(value: Any) -> Markup:
    """Return a value as escaped HTML; `Markup` is returned unchanged."""
    return value if isinstance(value, Markup) else Markup(html.escape(_text(value)))


def table(rows: Iterable[Iterable[Any]], head: Iterable[Any] = ()) -> Markup:
    """Return rows of cells as a table; the first cell of each row is its header."""
    lines = []
    if titles := [f"<th>{escape(title)}</th>" for title in head]:
        lines.append(f"<thead><tr>{''.join(titles)}</tr></thead>")
    for first, *cells in rows:
        others = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr><th>{escape(first)}</th>{others}</tr>")
    return Markup("<table>\n" + "\n".join(lines) + "\n</table>")


def describe(title: str, facts: Mapping[str, Any]) -> str:
    """Return a notebook's view of an object: a title, and the facts that have a value."""
    known = [(name, value) for name, value in facts.items() if value not in (None, "")]
    return f"<b>{escape(title)}</b>\n{table(known)}"


def _text(value: Any) -> str:
    """Return a value as text: numbers with commas or four digits, lists and dicts joined."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_text(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return str(value)
