# SPDX-License-Identifier: Apache-2.0
"""Output of commands: one JSON object or text on stdout, notes on stderr."""

import json
import math
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from sparsetrain.errors import DataWarning
from sparsetrain.system.launcher import is_first

# Control characters except newline and tab, marks that change the direction of text, and bytes of
# paths that are not UTF-8.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escape_controls(text: str) -> str:
    """Escape characters that a terminal would interpret; names in data may contain anything."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


_printed: ContextVar[set[str] | None] = ContextVar("_printed", default=None)  # see `notes_once`


@contextmanager
def notes_once() -> Iterator[None]:
    """Print each note only once during the block, such as notes on data in all runs of a search."""
    token = _printed.set(set())
    try:
        yield
    finally:
        _printed.reset(token)


def note(text: str) -> None:
    """Print a note on stderr; with several processes, only the first prints."""
    printed = _printed.get()
    if not is_first() or (printed is not None and text in printed):
        return
    if printed is not None:
        printed.add(text)
    print(escape_controls(f"sparsetrain: {text}"), file=sys.stderr, flush=True)


@contextmanager
def data_warnings_as_notes() -> Iterator[None]:
    """Print the library's warnings about data as notes."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        others = warnings.showwarning

        def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, DataWarning):
                note(f"warning: {message}")
            else:
                others(message, category, *rest, **more)

        warnings.showwarning = show
        yield


def emit(result: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Print a command's result at the end of stdout; only the first process prints."""
    if not is_first():
        return
    shown = json.dumps(_plain(result), allow_nan=False) if as_json else escape_controls(text)
    try:
        print(shown, flush=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to names with dots; an empty mapping counts as a value."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        is_inner = isinstance(value, Mapping) and value
        found |= flat(value, f"{prefix}{name}.") if is_inner else {f"{prefix}{name}": value}
    return found


def format_share(count: int | None, total: int) -> str:
    """Return a count as a percentage; a dash if it is unknown."""
    return "-" if count is None else f"{count / max(total, 1):.1%}"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Align cells as text; the first row is the heading, the first column is left-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(lines)


def format_scores(scores: Mapping[str, Mapping[str, Any] | None]) -> str:
    """Return the scores of named data sets as tables, next to a constant's scores."""
    found = {
        f"{name} {label}".strip(): own
        for name, score in scores.items()
        for label, own in (by_label(score) if score is not None else {}).items()
    }
    tables = []
    known_tables = _tables_of(found.values())
    for first, columns in known_tables.items():
        shown = {
            name: own
            for name, own in found.items()
            if next((table for table in known_tables if table in own), None) == first
        }
        # A grouped AUC exists only if it was requested.
        known = set().union(*shown.values())
        columns = {key: column for key, column in columns.items() if key in known}
        rows = [
            [name, *(format_score(own[key], form) for key, (_, form) in columns.items())]
            for name, own in shown.items()
        ]
        titles = [title for title, _ in columns.values()]
        tables += [format_table([["", *titles], *rows])] if rows else []
    return "\n\n".join(tables)


def by_label(score: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the scores of each label by its name, which is "" for a single label.

    The scores of a ranking by popularity have the name "Pop".
    """
    found: dict[str, dict[str, Any]] = {}
    several = any("." in name for name in score)
    pop = {name: score[name] for name in score if name.startswith(_POP) and "@" in name}
    for name in (name for name in score if name not in pop):
        label, _, key = name.rpartition(".")
        if label or not several:
            found.setdefault(label, {})[key] = score[name]
    if pop:
        found["Pop"] = {key: pop.get(f"{_POP}{key}", value) for key, value in found[""].items()}
    return found


def warn_if_useless(name: str, score: Mapping[str, Any]) -> None:
    """Warn if a constant, or the most popular items for every user, would score as well."""
    for key in (key for key in score if key.startswith(f"{_POP}ndcg@")):
        own, pop = score[key.removeprefix(_POP)], score[key]
        if own is not None and own <= pop:
            note(
                f"warning: on {name} the model is no better than the most popular items for "
                f"everybody ({key.removeprefix(_POP)} {own:.4f}, theirs {pop:.4f})"
            )
    for label, own in by_label(score).items():
        beside = next((key for key in own if key.startswith("constant_")), None)
        if beside is None:
            continue
        key = beside.removeprefix("constant_")
        value, constant = own[key], own[beside]
        if constant is not None and value >= constant:
            note(
                f"warning: on {name} the model is no better than a constant"
                f"{f' for {label}' if label else ''} "
                f"({key} {value:.4f}, the constant's {constant:.4f})"
            )


_POP = "pop_"  # prefix of the scores of a ranking by popularity
_LOGLOSS = {
    "logloss": ("logloss", "{:.4f}"),
    "constant_logloss": ("constant's", "{:.4f}"),
    "ne": ("NE", "{:.4f}"),
}
# Scores of each kind of label, with titles and formats, by a score that identifies the kind.
_TABLES = {
    "auc": {
        "rows": ("rows", "{:,}"),
        "auc": ("AUC", "{:.4f}"),
        **_LOGLOSS,
        "calibration": ("calibration", "{:.3f}"),
        "gauc": ("gAUC", "{:.4f}"),
    },
    "rmse": {
        "rows": ("rows", "{:,}"),
        "rmse": ("RMSE", "{:.4f}"),
        "constant_rmse": ("constant's", "{:.4f}"),
        "mae": ("MAE", "{:.4f}"),
        "mean_label": ("mean label", "{:.4f}"),
        "mean_prediction": ("mean prediction", "{:.4f}"),
    },
    "logloss": {
        "rows": ("rows", "{:,}"),
        "accuracy": ("accuracy", "{:.4f}"),
        **_LOGLOSS,
    },
}


@cache
def _of_labels() -> dict[str, dict[str, tuple[str, str]]]:
    """Return a table of all scores for each kind of label without a table in `_TABLES`."""
    import sparsetrain as st

    plain = {
        label.watched: {
            score: (score.replace("_", " "), "{:,}" if score == "rows" else "{:.4f}")
            for score in sorted(label.scores.SCORES, key=lambda score: score != "rows")
        }
        for label in st.labels.LABELS.values()
    }
    return {first: own for first, own in plain.items() if first not in _TABLES}


def _tables_of(scores: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, tuple[str, str]]]:
    """Return all tables; the table of rankings has a column for each score and cutoff."""
    names = dict.fromkeys(name for own in scores for name in own if "@" in name)
    ranked = {
        name: (name if name.startswith("recall") else name.upper(), "{:.4f}")
        for name in names
        if name.startswith(("hr", "ndcg", "mrr", "recall"))
    }
    of_ranking = {name: {"users": ("rows", "{:,}"), **ranked} for name in [*ranked][:1]}
    return {**_TABLES, **_of_labels(), **of_ranking}


def format_score(value: float | None, form: str = "{:.4f}") -> str:
    """Return a score as text, `-` if it is undefined."""
    return "-" if value is None else form.format(value)


def _plain(value: Any) -> Any:
    """Convert NumPy scalars and paths to JSON values; non-finite numbers become null."""
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
    """Open closed standard streams, as after `>&-`, on the null device.

    Otherwise the next opened file would get the number of a stream, and output of C++ code would go
    into that file.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:  # the lowest free number
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
