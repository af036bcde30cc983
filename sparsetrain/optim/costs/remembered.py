# SPDX-License-Identifier: Apache-2.0
"""Figures that were measured on this machine, kept in the folder of compiled programs.

A shared machine has slow minutes, and all that is measured then is out of proportion. Others take
the cores: then threads wait for one, see `waiting`. Or memory takes several times as long: that is
seen by a control, the same reads at random places, beside the best it ever was.
Figures of such a minute are not kept and nobody gets them: this process goes without, the next one
measures again. So a run depends on its cache alone, once that has figures of a quiet minute.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparsetrain import cache as programs

WAITED = 0.3  # seconds of each second; in quiet minutes below 0.2, beside a busy process 0.9
SLOW = 1.3  # times the best control
CONTROL_BYTES = 2**26  # beyond the caches
CONTROL_ROWS, CONTROL_WIDTH, CONTROL_CALLS = 8192, 16, 20

Figures = TypeVar("Figures", bound=Any)  # a NamedTuple of floats with a field `waited`


class _Kept(NamedTuple):
    """What a file holds: figures, and the control of their measurement."""

    figures: Any
    control: float

    def trusted(self, lowest: float) -> Any | None:
        """The figures, unless the machine was busy; `lowest` is the best control so far."""
        quiet = self.figures.waited <= WAITED and self.control <= SLOW * lowest
        return self.figures if quiet else None


_known: dict[Hashable, Any] = {}


def remembered(
    kind: type[Figures],
    key: tuple[Hashable, ...],
    described: tuple[object, ...],
    measure: Callable[[], Figures],
    least: float = -inf,
) -> Figures | None:
    """Figures as measured before, or now; None while the machine is busy.

    Parameters
    ----------
    kind : type
        A NamedTuple of floats. Its field `waited` says how long threads waited for a core, in
        seconds of each second.
    key : tuple
        Names the figures in this process.
    described : tuple
        Names them in the cache: all that decides them, with a `repr` that is the same tomorrow.
    measure : callable
        Measures them.
    least : float
        A file with a smaller number is damaged.
    """
    if key not in _known:
        place = programs.folder()
        if place is None:
            _known[key] = _measured(measure).trusted(inf)
        else:
            read = partial(_read, kind=kind, least=least)
            _known[key] = _kept(place, read, described, measure)
    return _known[key]


def control() -> float:
    """Microseconds of some reads at random places of memory, at their shortest."""
    table = np.ones((CONTROL_BYTES // (4 * CONTROL_WIDTH), CONTROL_WIDTH), np.float32)
    rng = np.random.default_rng(0)
    taken = np.empty((CONTROL_ROWS, CONTROL_WIDTH), np.float32)
    shortest = inf
    for _ in range(CONTROL_CALLS):
        places = rng.integers(0, len(table), CONTROL_ROWS)
        begin = time.perf_counter()
        np.take(table, places, axis=0, out=taken, mode="wrap")
        shortest = min(shortest, 1e6 * (time.perf_counter() - begin))
    return shortest


def _measured(measure: Callable[[], Any]) -> _Kept:
    """Figures, between two controls; the slower one counts."""
    before, figures = control(), measure()
    return _Kept(figures, max(before, control()))


def _kept(
    place: Path,
    read: Callable[[Path], _Kept | None],
    described: tuple[object, ...],
    measure: Callable[[], Any],
) -> Any | None:
    file, best = _file(place, described), _file(place, ("control",))
    found, lowest = read(file), _lowest(best)
    if found is None or (found.trusted(lowest) is None and control() <= SLOW * lowest):
        found = _measured(measure)
        if found.trusted(lowest) is not None:
            _write(file, found)
    if found.control < lowest:
        _write(best, _Kept(None, found.control))
    return found.trusted(lowest)


def _lowest(file: Path) -> float:
    """The best control so far."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        lowest = float(json.loads(file.read_text())["control"])
        return lowest if lowest > 0 else inf
    return inf


def _file(place: Path, described: tuple[object, ...]) -> Path:
    return place / f"costs-{programs.digest_of_figures(repr(described))}.json"


def _read(file: Path, kind: type[Any], least: float) -> _Kept | None:
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        found = json.loads(file.read_text())
        figures = kind(**{name: float(found["figures"][name]) for name in kind._fields})
        kept = _Kept(figures, float(found["control"]))
        if kept.control > 0 and all(isfinite(number) and number >= least for number in figures):
            return kept
    return None


def _write(file: Path, kept: _Kept) -> None:
    figures = None if kept.figures is None else kept.figures._asdict()
    with suppress(OSError), tempfile.TemporaryDirectory(dir=file.parent) as draft:
        drafted = Path(draft) / file.name
        drafted.write_text(json.dumps(kept._asdict() | {"figures": figures}))
        drafted.replace(file)
