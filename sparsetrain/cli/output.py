# SPDX-License-Identifier: Apache-2.0
"""Output of commands: one JSON object or text on stdout, notes on stderr."""

import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

# Control characters but newlines and tabs, and marks that turn the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    """Return text that a terminal shows and does not obey: names in data may hold anything."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def note(text: str) -> None:
    """Print a note on stderr."""
    print(escape_controls(f"sparsetrain: {text}"), file=sys.stderr, flush=True)


def emit(result: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Print the result of a command, as the last thing on stdout."""
    shown = json.dumps(_plain(result), allow_nan=False) if as_json else escape_controls(text)
    print(shown, flush=True)


def format_share(count: int | None, total: int) -> str:
    """Return a count as a percentage; a dash if it is unknown."""
    return "-" if count is None else f"{count / max(total, 1):.1%}"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as aligned text; the first row is the heading, the first column left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(lines)


def format_scores(scores: Mapping[str, Mapping[str, Any] | None]) -> str:
    """Return the scores of named data sets as a table, each with the logloss of a constant."""
    rows = [["", "rows", "AUC", "logloss", "constant's", "NE", "calibration"]]
    for name, score in scores.items():
        if score is not None:
            rows.append([name, *(format_score(score[key], form) for key, form in _COLUMNS.items())])
    return format_table(rows)


def warn_if_useless(name: str, score: Mapping[str, Any]) -> None:
    """Warn if a constant would have scored as well."""
    constant = score["constant_logloss"]
    if constant is not None and score["logloss"] >= constant:
        note(
            f"warning: on {name} the model is no better than a constant "
            f"(logloss {score['logloss']:.4f}, the constant's {constant:.4f})"
        )


_COLUMNS = {
    "rows": "{:,}",
    "auc": "{:.4f}",
    "logloss": "{:.4f}",
    "constant_logloss": "{:.4f}",
    "ne": "{:.4f}",
    "calibration": "{:.3f}",
}


def format_score(value: float | None, form: str = "{:.4f}") -> str:
    """Return a score as text, `-` where it is not defined."""
    return "-" if value is None else form.format(value)


def _plain(value: Any) -> Any:
    """Turn NumPy scalars and paths into JSON values; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def open_streams() -> None:
    """Open standard streams that were closed, as by `>&-`, on the null device.

    Otherwise the next opened file gets their number, and output of C++ code ends up in it.
    """
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        if getattr(sys, name) is not None:
            continue
        nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which may be this one
        if nowhere > number and not _is_open(number):
            os.dup2(nowhere, number)
            os.close(nowhere)
            nowhere = number
        setattr(sys, name, os.fdopen(nowhere, mode))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
