# SPDX-License-Identifier: Apache-2.0
"""Figures that were measured on this machine, kept in the folder of compiled programs.

While others take the cores, threads wait (see `waiting`) and all that is measured is out of
proportion. Figures of such a minute are not kept and nobody gets them: this process goes without,
the next one measures again.
A virtual machine also has minutes that nothing tells from others: for some seconds two threads sort
at half their speed, by no counter of Linux. So figures that speak against the default are measured
again by some more runs, and the first that finds otherwise has the last word.
Beyond that a run depends on its cache alone.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sparsetrain.runtime import library_cache
from sparsetrain.runtime.host import host_target

WAITED = 0.3  # seconds of each second; in quiet minutes below 0.2, beside a busy process 0.9
TRIES = 3  # runs that must agree against the default

Figures = TypeVar("Figures", bound=Any)  # a NamedTuple of floats with a field `waited`


class Kept(NamedTuple):
    """What a file holds: figures, and how many runs found the like."""

    figures: Any
    tries: int


_known: dict[Hashable, Any] = {}


def remembered(
    kind: type[Figures],
    key: tuple[Hashable, ...],
    described: tuple[object, ...],
    measure: Callable[[], Figures],
    least: float = -inf,
    doubtful: Callable[[Figures], bool] = lambda figures: False,
) -> Kept | None:
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
    doubtful : callable
        Whether figures speak against the default, so that more than one run should find them.
    """
    if key not in _known:
        place = library_cache.cache_folder()
        if place is None:
            _known[key] = _quiet(measure)
        else:
            read = partial(_read, kind=kind, least=least)
            _known[key] = _kept(_file(place, described), read, measure, doubtful)
    return _known[key]


def is_known(
    kind: type[Any], key: tuple[Hashable, ...], described: tuple[object, ...], least: float = -inf
) -> bool:
    """Whether `remembered` measures nothing, or nothing that it did not measure before."""
    if key in _known:
        return True
    place = library_cache.cache_folder()
    return place is not None and _read(_file(place, described), kind, least) is not None


def _quiet(measure: Callable[[], Any]) -> Kept | None:
    """Figures as measured now, unless others had the cores."""
    figures = measure()
    return Kept(figures, 1) if figures.waited <= WAITED else None


def _kept(
    file: Path,
    read: Callable[[Path], Kept | None],
    measure: Callable[[], Any],
    doubtful: Callable[[Any], bool],
) -> Kept | None:
    found = read(file)
    if found is not None and (found.tries >= TRIES or not doubtful(found.figures)):
        return found
    now = _quiet(measure)
    if now is None:
        return found
    if found is not None and doubtful(now.figures):
        now = found._replace(tries=found.tries + 1)
    _write(file, now)
    return now


def _file(place: Path, described: tuple[object, ...]) -> Path:
    digest = library_cache.digest("figures", repr(described), str(host_target()))
    return place / f"costs-{digest}.json"


def _read(file: Path, kind: type[Any], least: float) -> Kept | None:
    with suppress(OSError, ArithmeticError, ValueError, TypeError, KeyError, AttributeError):
        found = json.loads(file.read_text())
        figures = kind(**{name: float(found["figures"][name]) for name in kind._fields})
        if all(isfinite(number) and number >= least for number in figures):
            return Kept(figures, int(found["tries"]))
    return None


def _write(file: Path, kept: Kept) -> None:
    with suppress(OSError), tempfile.TemporaryDirectory(dir=file.parent) as draft:
        drafted = Path(draft) / file.name
        drafted.write_text(json.dumps(kept._asdict() | {"figures": kept.figures._asdict()}))
        drafted.replace(file)
