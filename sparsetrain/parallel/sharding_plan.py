# SPDX-License-Identifier: Apache-2.0
"""Plan of the shards: which rank owns which rows of each table.

A table is either whole on one rank, or dealt by rows: row i is on rank i % R. Ids are numbered by
descending count, so with ranges of rows the first rank would do nearly all lookups. A plan is a
pure function of the tables and the number of ranks; saved files do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

from sparsetrain.errors import ConfigError
from sparsetrain.parallel.comm import spans
from sparsetrain.tables.slots import Span

DEALT = -1  # the `owner` of a table that is dealt by rows
Shard = Literal["auto", "table", "row"] | Mapping[str, str | int]
# "auto" deals tables with at least this many rows: about ten times the lookups of a usual batch.
DEALT_FROM = 1 << 14


class Placed(NamedTuple):
    """One table of a storage.

    Parameters
    ----------
    name : str
    rows : slice
        Its rows in the whole storage.
    owner : int
        The rank that has the whole table, or `DEALT`.
    """

    name: str
    rows: slice
    owner: int

    def on(self, rank: int, size: int) -> tuple[int, int]:
        """Return the first of the table's rows that a rank has, and the step to the next."""
        if self.owner == DEALT:
            return rank, size
        return (0, 1) if self.owner == rank else (self.rows.stop - self.rows.start, 1)

    def held(self, rank: int, size: int) -> int:
        """Return how many of the table's rows a rank has."""
        first, step = self.on(rank, size)
        return len(range(first, self.rows.stop - self.rows.start, step))


class StoragePlan(NamedTuple):
    """The tables of one storage, ordered by their first row, for `size` ranks."""

    tables: tuple[Placed, ...]
    width: int
    size: int

    def slices(self, rank: int) -> dict[str, slice]:
        """Return the rows of each table in the storage of a rank."""
        places = spans([table.held(rank, self.size) for table in self.tables])
        return {table.name: place for table, place in zip(self.tables, places, strict=True)}

    def rows(self, rank: int) -> int:
        """Return a rank's number of rows, at least 1: kernels do not accept an empty table."""
        return max(1, sum(table.held(rank, self.size) for table in self.tables))

    def numbers(self, rank: int) -> tuple[Span, ...]:
        """Return the spans of a rank's rows, with their numbers in the whole storage."""
        found = []
        for table, place in zip(self.tables, self.slices(rank).values(), strict=True):
            first, step = table.on(rank, self.size)
            begin = table.rows.start + first - step * place.start
            found.append(Span(place.start, place.stop, begin, step))
        return tuple(found)

    @property
    def stride(self) -> int:
        """Largest number of rows on a rank; row i of rank r has the key ``r * stride + i``."""
        return max(map(self.rows, range(self.size)))


ShardingPlan = dict[str, StoragePlan]


def make_plan(
    tables: Mapping[str, Mapping[str, slice]],
    widths: Mapping[str, int],
    size: int,
    shard: Shard = "auto",
    alike: Iterable[Sequence[str]] = (),
) -> ShardingPlan:
    """Decide the placement of tables.

    Parameters
    ----------
    tables : mapping
        Storage -> the rows of each of its tables, by name.
    widths : mapping of str to int
        D of each storage.
    size : int
        Number of ranks.
    shard : "auto", "table", "row" or mapping
        "table": each table whole, the largest first, to the rank with the fewest elements; "row":
        all tables by rows; "auto": large tables by rows. A mapping gives one of these, or a rank,
        by table; tables that it does not name are "auto".
    alike : iterable of sequences of str
        Groups of tables that take the placement of their largest table.

    Raises
    ------
    ConfigError
        If a table or a placement is unknown.
    """
    spans = [(s, name, rows) for s, parts in tables.items() for name, rows in parts.items()]
    elements = {name: (rows.stop - rows.start) * widths[s] for s, name, rows in spans}
    heights = {name: rows.stop - rows.start for _, name, rows in spans}
    requested = _requested(shard, list(elements), size)
    most = sum(elements.values()) / (2 * size)
    groups = {name: group for group in alike for name in group}
    rank_of: dict[str, int] = {}
    load = [0] * size
    for name in sorted(elements, key=lambda name: -elements[name]):
        placed = [rank_of[other] for other in groups.get(name, ()) if other in rank_of]
        how = placed[0] if placed else requested[name]
        if how == "auto":
            large = heights[name] >= DEALT_FROM or elements[name] > most
            how = "row" if size > 1 and large else "table"
        rank_of[name] = owner = (
            DEALT if how == "row" else load.index(min(load)) if how == "table" else int(how)
        )
        if owner != DEALT:
            load[owner] += elements[name]
    return {
        storage: StoragePlan(
            tuple(
                Placed(name, rows, rank_of[name])
                for name, rows in sorted(parts.items(), key=lambda item: item[1].start)
            ),
            widths[storage],
            size,
        )
        for storage, parts in tables.items()
    }


def _requested(shard: Any, names: Sequence[str], size: int) -> dict[str, str | int]:
    given = shard if isinstance(shard, Mapping) else dict.fromkeys(names, shard)
    for name, how in given.items():
        if name not in names:
            near = get_close_matches(str(name), names, n=1) or names[:8]
            raise ConfigError(f"shard: no table {name!r}; there are {', '.join(near)}")
        is_rank = type(how) is int and 0 <= how < size
        if not is_rank and how not in ("auto", "table", "row"):
            raise ConfigError(
                f"shard: {how!r} is not a placement: use 'auto', 'table' or 'row', or map a "
                f"table's name to a rank below {size}"
            )
    return {**dict.fromkeys(names, "auto"), **given}


def describe(plan: ShardingPlan) -> str:
    """Return a text table of tables, their rows and their owners."""
    lines = [f"{'table':24} {'rows':>13}  where"]
    for storage in plan.values():
        for table in storage.tables:
            where = "by rows, all ranks" if table.owner == DEALT else f"rank {table.owner}"
            lines.append(f"{table.name:24.24} {table.rows.stop - table.rows.start:13,}  {where}")
    return "\n".join(lines)
