# SPDX-License-Identifier: Apache-2.0
"""A source and an encoder together: an iterator of batches for each epoch, the same for a seed.

Order. Without a seed, that of the file. With one, `(seed, epoch)` alone decides: the parts (row
groups, or slices of a table in memory) are read in a random order, and their rows pass a buffer
that mixes them (`rows.shuffled`). A stream has one part, so only the buffer mixes it. Numbers are
drawn from NumPy's default generator, which may change between NumPy versions.

Memory: the buffer (260 bytes a row at 13 + 26 columns), a piece, and `prefetch` batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np

from sparsetrain.errors import ConfigError

from .batch import Batch
from .encoder import Encoder
from .inputs import open_source
from .prefetch import prefetched
from .rows import Rows, batched, shuffled
from .schema import Columns
from .source import BatchSource, Part

BUFFER_ROWS = 262_144


class Dataset:
    """Rows to train or evaluate on.

    Parameters
    ----------
    source : anything `open_source` takes
    encoder : Encoder or None
        How to read its columns; None only for batches, which are encoded already.
    require_label : bool
        Whether the label column is read; without it the batches have none.

    Raises
    ------
    DataError
        If the source cannot be opened, or a file's columns do not fit the encoder: before any row
        is read.
    ConfigError
        If a table comes without an encoder.
    """

    def __init__(self, source: Any, encoder: Encoder | None, *, require_label: bool = True) -> None:
        self._source = open_source(source)
        self._encoder = encoder
        self._parts: list[tuple[Part, Columns]] = []
        if isinstance(self._source, BatchSource):
            return
        if encoder is None:
            raise ConfigError(
                f"{self._source.name}: rows need an encoder; fit one with Encoder.fit(train)"
            )
        self._parts = encoder.bind(self._source.parts, require_label=require_label)

    @property
    def num_rows(self) -> int | None:
        """Rows of an epoch, or None where only reading would tell."""
        return self._source.num_rows

    @property
    def layout(self) -> str:
        """One line that says which columns were found; of several layouts, each."""
        seen = dict.fromkeys(columns.layout for _, columns in self._parts)
        return "; ".join(seen) or "batches, used as they are"

    def batches(
        self,
        batch_size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        drop_last: bool = False,
        prefetch: int = 4,
        buffer_rows: int = BUFFER_ROWS,
    ) -> Iterator[Batch]:
        """Yield one epoch.

        A source of batches is passed on as it is, in the caller's thread: its maker chose sizes and
        order, and may not expect another thread.

        Parameters
        ----------
        batch_size : int
            Rows of every batch but the last.
        seed : int, optional
            Shuffles; None keeps the order of the file.
        epoch : int
            Together with the seed chooses the order.
        drop_last : bool
            Leaves out the last batch if it is smaller.
        prefetch : int
            Batches made ahead on a background thread; 0 makes them in the caller's.
        buffer_rows : int
            Rows among which a shuffle mixes.

        Raises
        ------
        DataError
            When a bad row is reached.
        ConfigError
            At once, if an argument is out of range.
        """
        limits = {"batch_size": (batch_size, 1), "epoch": (epoch, 0), "prefetch": (prefetch, 0)}
        limits |= {"buffer_rows": (buffer_rows, 1), "seed": (seed or 0, 0)}
        for name, (value, least) in limits.items():
            if value < least:
                raise ConfigError(f"{name} is {value}; it must be {least} or more")
        if isinstance(self._source, BatchSource):
            return self._source.batches()

        def make() -> Iterator[Batch]:
            rng = None if seed is None else np.random.default_rng([seed, epoch])
            return batched(self._rows(rng, buffer_rows), batch_size, drop_last)

        return prefetched(make, prefetch) if prefetch else make()

    def _rows(self, rng: np.random.Generator | None, buffer_rows: int) -> Iterator[Rows]:
        if rng is None:
            return self._encoded(range(len(self._parts)))
        return shuffled(self._encoded(rng.permutation(len(self._parts))), buffer_rows, rng)

    def _encoded(self, order: Any) -> Iterator[Rows]:
        assert self._encoder is not None
        for index in order:
            part, columns = self._parts[index]
            with closing(part.pieces(columns.names)) as pieces:
                for place, piece in pieces:
                    yield self._encoder.encode_piece(piece, columns, place)
