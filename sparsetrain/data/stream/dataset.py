# SPDX-License-Identifier: Apache-2.0
"""`Dataset`: batches of an epoch from a source and an encoder, reproducible from a seed.

Every batch records the position of the next batch; an epoch that starts there yields the same rows
in the same order. If parquet statistics show ids outside their table, the file is refused before
any row is read. A shuffle holds in memory two windows (160 bytes per row with 13 + 26 columns), one
being read and one being filled; `prefetch` batches; and one part of the source for each worker
after the first. If a part has more than `HELD_ROWS` rows, one worker reads the source. For several
readers, an epoch is divided into stretches of equal length, each read, shuffled and batched
separately.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparsetrain.data.batch import Batch, Position, Rows
from sparsetrain.data.columns.bags import with_distinct
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.encode.reader import Reader, bind
from sparsetrain.data.read.open_source import open_source
from sparsetrain.data.read.source import HELD_ROWS, Part
from sparsetrain.data.rows import (
    BatchSource,
    PermutedRows,
    Share,
    ShareMeter,
    first_rows,
    regroup,
    skip_rows,
    warn_of_unknown,
)
from sparsetrain.data.stream.shuffle import shuffled, windows
from sparsetrain.data.stream.threads import ordered_map, prefetched
from sparsetrain.data.values.checksum import crc32_of
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.system.argument_checks import require_int, require_type


def check_ranges(parts: Sequence[tuple[Part, Reader]]) -> None:
    """Refuse encoded ids outside their table, if the file's statistics show them."""
    for part, reader in parts:
        for name, _, column in reader.categories if reader.is_plain else ():
            known = part.range_of(name)
            if known is None or all(0 <= id_ < column.rows for id_ in known):
                continue
            for location, piece in part.pieces([name]):  # finds the row, for the message
                column.encode(piece.column(name), None, location.of_column(name))
            raise part.location.of_column(name).error(
                "the file's statistics of this column do not match its values; write the file again"
            )


BUFFER_ROWS = 262_144


class Stretch(NamedTuple):
    """One of `of` equal stretches of an epoch's rows, counted from 0; by default all rows."""

    number: int = 0
    of: int = 1

    def rows(self, total: int) -> range:
        """Return the range of this stretch among `total` rows in the epoch's order."""
        return range(total * self.number // self.of, total * (self.number + 1) // self.of)


WHOLE = Stretch()


class _Plan(NamedTuple):
    """The order of one epoch, and where to begin in it."""

    batch_size: int
    seed: int | None
    start: Position
    buffer_rows: int
    workers: int
    stretch: Stretch

    @property
    def first_row(self) -> int:
        """The row at which reading begins: the batch's first, or its window's in a shuffle."""
        row = self.start.row
        return row if self.seed is None else row - row % self.buffer_rows


class Dataset:
    """Rows for training or evaluation.

    Parameters
    ----------
    source : anything `open_source` takes
    encoder : Encoder or None
        Chooses the columns and encodes them; None only for batches, which are already encoded.
    require_label : bool
        Whether to read the label column; otherwise batches have no labels.
    read_weights : bool
        Whether to read row weights with the labels, if the encoder knows their column and the data
        have it; only training needs them.
    optional : collection of str
        Columns that the data may lack; their values are then all missing.

    Attributes
    ----------
    absent : frozenset of str
        The optional columns that some of the data lack.

    Raises
    ------
    DataError
        If the source cannot be opened, a file's columns do not fit the encoder, or a row group's
        statistics show an id outside its table; raised before any row is read.
    ConfigError
        If there is no encoder, but the source does not consist of batches.
    """

    def __init__(
        self,
        source: Any,
        encoder: Encoder | None,
        *,
        require_label: bool = True,
        read_weights: bool = True,
        optional: Collection[str] = (),
    ) -> None:
        self._source = open_source(source, encoder.schema if encoder else None, optional)
        self._encoder = encoder
        self.absent: frozenset[str] = frozenset()
        self._parts: list[tuple[Part, Reader]] = []
        self._meter = ShareMeter(
            [c.name for c in encoder.features if c.reserves] if encoder else ()
        )
        if isinstance(self._source, BatchSource):
            return
        if encoder is None:
            raise ConfigError(
                f"{self._source.name}: rows need an encoder; fit one with Encoder.fit(train)"
            )
        parts = self._source.parts
        self.absent = frozenset(n for n in optional for p in parts if n not in p.schema.names)
        self._parts = bind(
            encoder,
            parts,
            require_label=require_label,
            read_weights=read_weights,
            optional=optional,
        )
        check_ranges(self._parts)

    @property
    def num_rows(self) -> int | None:
        """Rows of an epoch, or None if unknown before reading."""
        return self._source.num_rows

    @property
    def is_raw(self) -> bool:
        """Whether all values are encoded from raw data."""
        return bool(self._parts) and not any(reader.is_plain for _, reader in self._parts)

    def with_distinct(self, number: int) -> Dataset:
        """Return these rows, with each raw value once per list in category column `number`."""
        made = copy(self)
        made._parts = [
            (part, reader)
            if reader.is_plain  # ids stay as they are: several rare values may share one
            else (with_distinct(part, *reader.categories[number][:2]), reader)
            for part, reader in self._parts
        ]
        return made

    @property
    def layout(self) -> str:
        """Description of the columns found, in one line; lists each layout if there are several."""
        seen = dict.fromkeys(reader.found.layout for _, reader in self._parts)
        return "; ".join(seen) or "batches, used as they are"

    @property
    def id_shares(self) -> tuple[Share, ...]:
        """For each category column, the shares of missing and of unseen ids in all rows read."""
        return self._meter.shares

    def checksum(self) -> int:
        """Checksum of all values of the columns that are read; costs a pass over them."""
        found = 0
        for part, reader in self._parts:
            table = pa.Table.from_batches([piece for _, piece in part.pieces(reader.names)])
            for column in table.columns:
                found = crc32_of(column, found)
        return found

    def _warn_of_unknown(self) -> None:
        """Warn about columns that had no known value in the rows read."""
        columns = self._encoder.features if self.id_shares and self._encoder else ()
        warn_of_unknown(self._source.name, self.id_shares, columns)

    def batches(
        self,
        batch_size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        position: Position | None = None,
        drop_last: bool = False,
        prefetch: int = 4,
        buffer_rows: int = BUFFER_ROWS,
        workers: int = 1,
        stretch: Stretch = WHOLE,
    ) -> Iterator[Batch]:
        """Yield one epoch, or the rest of one.

        A user's own batches are passed on unchanged, in the caller's thread: the user chose their
        size and order, and may not expect threads.

        Parameters
        ----------
        batch_size : int
            Rows of every batch except the last.
        seed : int, optional
            Seed of the shuffle; None keeps the order of the data.
        epoch : int
            Number of the epoch; with the seed, it determines the order. `position` overrides it.
        position : Position, optional
            Where to begin: the `Batch.position` of an earlier batch with the same seed and
            `buffer_rows`. After an epoch's last batch it is the beginning of the next epoch.
        drop_last : bool
            Whether to leave out the last batch if it is smaller.
        prefetch : int
            Number of batches to prepare on a background thread; 0 prepares them in the caller's
            thread.
        buffer_rows : int
            Rows per window; a shuffle mixes the rows within each window.
        workers : int
            Threads that read and encode; their number does not change the order. One thread reads
            text, and parquet with a row group of more than a million rows.
        stretch : Stretch
            Part of the rows to read, if the source knows its number of rows. Positions count rows
            within it.

        Raises
        ------
        DataError
            When a bad row is reached, or at the end if there were no rows.
        ConfigError
            If an argument is out of range; raised immediately.
        """
        require_type("position", position, Position, "a Position, as Batch.position has it")
        start = position or Position(epoch)
        limits = {"batch_size": (batch_size, 1), "epoch": (epoch, 0), "prefetch": (prefetch, 0)}
        limits |= {"buffer_rows": (buffer_rows, 1), "seed": (seed or 0, 0), "workers": (workers, 1)}
        limits |= {f"position: {name}": (value, 0) for name, value in start._asdict().items()}
        for name, (value, least) in limits.items():
            require_int(name, value, least)
        if isinstance(self._source, BatchSource):
            return islice(self._source.batches(), start.batch, None)
        plan = _Plan(batch_size, seed, start, buffer_rows, workers, stretch)
        make = partial(self._batches, plan, drop_last, prefetch)
        return prefetched(make, prefetch) if prefetch else make()

    def _batches(self, plan: _Plan, drop_last: bool, prefetch: int) -> Iterator[Batch]:
        """Cut the rows into batches, each with the position of the next one."""
        rows: Iterator[Any] = (
            self._encoded(plan) if plan.seed is None else self._mixed(plan, plan.seed, prefetch)
        )
        rows = skip_rows(rows, plan.start.row - plan.first_row)
        held: Rows | None = None
        position = plan.start
        for group in regroup(rows, plan.batch_size):
            if held is not None:  # yielded one batch late: only the next one shows which is last
                position = Position(position.epoch, position.row + held.size, position.batch + 1)
                yield Batch._of(held)._at(position)
            held = group
        if held is None and plan.start.row == 0:  # only now is a text file known to have no rows
            raise DataError(f"{self._source.name}: no rows")
        if held is not None and not (drop_last and held.size < plan.batch_size):
            yield Batch._of(held)._at(Position(position.epoch + 1))

    def _mixed(self, plan: _Plan, seed: int, prefetch: int) -> Iterator[PermutedRows]:
        """Yield shuffled windows."""
        total = plan.buffer_rows if self.num_rows is None else len(plan.stretch.rows(self.num_rows))
        size = max(1, min(plan.buffer_rows, total))
        key = [seed, plan.start.epoch, *([plan.stretch.number] if plan.stretch.of > 1 else [])]

        def make() -> Iterator[PermutedRows]:
            filled = windows(self._encoded(plan), size)
            return shuffled(filled, key, plan.start.row // plan.buffer_rows)

        # A separate thread fills the next window while batches are yielded.
        return prefetched(make, 1) if prefetch else make()

    def _encoded(self, plan: _Plan) -> Iterator[Rows]:
        """Yield encoded pieces in the order of the epoch, from the row at which it begins."""
        order = _part_order(len(self._parts), plan.seed, plan.start.epoch)
        sizes = [part.num_rows for part, _ in self._parts]
        rows = None if self.num_rows is None else plan.stretch.rows(self.num_rows)
        order, skip = _skip_parts(order, sizes, plan.first_row + (rows.start if rows else 0))
        if plan.workers == 1 or any(size is None or size > HELD_ROWS for size in sizes):
            pieces = (piece for index in order for piece in self._part(index))
        else:
            whole = ordered_map(lambda index: list(self._part(index)), order, plan.workers)
            pieces = (piece for part in whole for piece in part)
        left = skip_rows(pieces, skip)
        yield from left if rows is None else first_rows(left, len(rows) - plan.first_row)

    def _part(self, index: int) -> Iterator[Rows]:
        part, reader = self._parts[index]
        for location, piece in part.pieces(reader.names, reader.found.categories):
            rows = reader.encode(piece, location)
            self._meter.add(rows)
            yield rows


def _part_order(num_parts: int, seed: int | None, epoch: int) -> Sequence[int]:
    """Return the numbers of the parts in the order in which they are read."""
    if seed is None:
        return range(num_parts)
    order: list[int] = np.random.default_rng([seed, epoch]).permutation(num_parts).tolist()
    return order


def _skip_parts(
    order: Sequence[int], num_rows: Sequence[int | None], row: int
) -> tuple[Sequence[int], int]:
    """Return the rest of `order` after `row` rows, and how many rows of its first part to skip.

    A part of unknown length is never skipped as a whole: its rows must be read to be counted.
    """
    for index, part in enumerate(order):
        rows = num_rows[part]
        if rows is None or row < rows:
            return order[index:], row
        row -= rows
    return [], row
