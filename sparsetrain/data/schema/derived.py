# SPDX-License-Identifier: Apache-2.0
"""`Derived`: a column made of other columns, by one of several kinds; its bases are their table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from sparsetrain.data.derived.arithmetic import Arithmetic
from sparsetrain.data.derived.boundaries import Boundaries, Quantiles
from sparsetrain.data.derived.cross import Cross
from sparsetrain.data.derived.kind import Column, Kind, require_source
from sparsetrain.data.derived.logarithm import Logarithm
from sparsetrain.data.derived.separator import Separator
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location
from sparsetrain.errors import ConfigError


@dataclass(frozen=True)
class Derived(
    Boundaries,
    Quantiles,
    Logarithm,
    Separator,
    Cross,
    Arithmetic,
):
    """A column made of a column: `(source // divide) % modulo`, or by one of the further rules.

    Attributes
    ----------
    source : str
        The column it is made of; `from` in a file.
    divide, modulo : int
        Of an integer column. At least 1; a modulo of None leaves the quotient as it is.
    boundaries : tuple of float or None
        A number's bucket is how many of these, which rise, are not above it.
    quantiles : int or None
        Boundaries between so many buckets of about as many rows each, which are learnt from the
        training data.
    log : float or None
        A number's bucket is ``floor(log(1 + |x|))`` with the number's sign, to this base.
    separator : str or None
        Text is split into a list at these.
    cross : str or None
        A second column: a pair of values of both becomes a hash below `buckets`.
    buckets : int or None
    """

    @property
    def of(self) -> type[Kind]:
        """Its kind: the first with an option that is given, or arithmetic."""
        return next((kind for kind in KINDS if kind.given(self)), KINDS[-1])

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns it is made of."""
        return self.source, *(getattr(self, name) for name in self.of.others)

    def check(self, where: str) -> None:
        """Refuse a rule that cannot hold for any data."""
        for kind in KINDS:
            kind.check(self, where)
        if len(given := [*filter(None, (kind.given(self) for kind in KINDS))]) > 1:
            raise ConfigError(f"{where}: {' and '.join(given)} exclude each other: drop one")

    def columns(self, piece: pa.RecordBatch, location: Location) -> list[Column]:
        """Return its sources in a piece, each with its location."""
        found = ((piece.column(name), location.of_column(name)) for name in self.sources)
        return [require_source(column, self.of) for column in found]

    def make(self, *columns: Column) -> pa.Array:
        """Return the column made of its sources."""
        return self.of.make(self, *columns)

    def learn(self, numbers: Array) -> Derived:
        """Return the rule that was learnt from numbers (n,)."""
        return self._with(self.of.learnt(self, numbers))

    def as_learnt(self, known: Derived) -> Derived:
        """Return the rule with what a known one has learnt, if there is something to learn."""
        found = getattr(known, self.of.learns, None)
        return self if found is None else self._with(found)

    def _with(self, learnt: Any) -> Derived:
        return replace(self, **{self.of.key: None, self.of.learns: learnt})


KINDS: tuple[type[Kind], ...] = Derived.__bases__
