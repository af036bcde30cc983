# SPDX-License-Identifier: Apache-2.0
"""`Derived`: a column computed from other columns; each of its base classes is a kind."""

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
    """A column computed from one or two others, by default as `(source // divide) % modulo`.

    Attributes
    ----------
    source : str
        The source column; its key in a schema file is `from`.
    divide, modulo : int
        For an integer column; each is at least 1. If `modulo` is None, the result is the quotient.
    boundaries : tuple of float or None
        Increasing; a number's bucket is the count of boundaries that it reaches or exceeds.
    quantiles : int or None
        Number of buckets with about equally many rows; their boundaries are learnt from the
        training data.
    log : float or None
        Base of the logarithm: the bucket of x is ``floor(log(1 + |x|))`` with the sign of x.
    separator : str or None
        Text is split into a list at this separator.
    cross : str or None
        A second source column: a pair of values becomes a hash below `buckets`.
    buckets : int or None
    """

    @property
    def of(self) -> type[Kind]:
        """Its kind: the first one with an option that is set, by default arithmetic."""
        return next((kind for kind in KINDS if kind.given(self)), KINDS[-1])

    @property
    def cuts_numbers(self) -> bool:
        """Whether it has boundaries, or learns them."""
        return bool(self.quantiles) or self.boundaries is not None

    @property
    def sources(self) -> tuple[str, ...]:
        """The source columns."""
        return self.source, *(getattr(self, name) for name in self.of.others)

    def check(self, where: str) -> None:
        """Refuse a rule that is invalid for any data."""
        for kind in KINDS:
            kind.check(self, where)
        if len(given := [*filter(None, (kind.given(self) for kind in KINDS))]) > 1:
            raise ConfigError(f"{where}: {' and '.join(given)} exclude each other: drop one")

    def columns(self, piece: pa.RecordBatch, location: Location) -> list[Column]:
        """Return the source columns of a piece with their locations."""
        found = ((piece.column(name), location.of_column(name)) for name in self.sources)
        return [require_source(column, self.of) for column in found]

    def make(self, *columns: Column) -> pa.Array:
        """Compute the column from its source columns."""
        return self.of.make(self, *columns)

    def learn(self, numbers: Array) -> Derived:
        """Return the rule with its option learnt from numbers (n,)."""
        return self._with(self.of.learnt(self, numbers))

    def as_learnt(self, known: Derived) -> Derived:
        """Return this rule with the option that the rule `known` has learnt, if it learns one."""
        found = getattr(known, self.of.learns, None)
        return self if found is None else self._with(found)

    def _with(self, learnt: Any) -> Derived:
        return replace(self, **{self.of.key: None, self.of.learns: learnt})


KINDS: tuple[type[Kind], ...] = Derived.__bases__
