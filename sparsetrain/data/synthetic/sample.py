# SPDX-License-Identifier: Apache-2.0
"""Rows before they are text: integer values and category ranks, each with what is missing."""

from typing import NamedTuple

import numpy as np

from sparsetrain.data.synthetic.figures import CATEGORIES, INTEGERS, Figures
from sparsetrain.data.synthetic.laws import CategoryLaw, IntegerLaw
from sparsetrain.data.synthetic.streams import Stream


class Sample(NamedTuple):
    """Drawn rows, column by column.

    Attributes
    ----------
    integers : ndarray (13, n) int32
        0 where missing.
    absent : ndarray (13, n) bool
        Which integers are missing.
    ranks : ndarray (26, n) int32
        Rank of the category, 1 the commonest; 0 where missing.
    """

    integers: np.ndarray
    absent: np.ndarray
    ranks: np.ndarray


class Sampler:
    """Draw rows whose columns are independent, but for those that go missing together."""

    def __init__(self, figures: Figures, max_cardinality: int | None = None) -> None:
        self._missing = figures.missing
        self.integers = [IntegerLaw(figures.integers[name]) for name in INTEGERS]
        self.categories = [
            CategoryLaw(figures.categories[name], max_cardinality) for name in CATEGORIES
        ]
        self.missing_rate = {c: group.rate for group in figures.missing for c in group.columns}

    def draw(self, stream: Stream, rows: int) -> Sample:
        """Take `rows` rows from `stream`; the same stream gives the same rows."""
        absent = self._draw_absent(stream, rows)
        nowhere = np.zeros(rows, bool)
        gaps = np.stack([absent.get(name, nowhere) for name in INTEGERS])
        integers = np.stack([law.draw(stream.uniform(rows)) for law in self.integers])
        integers[gaps] = 0
        ranks = np.stack([law.draw(stream.uniform(rows)) for law in self.categories])
        for name, column in zip(CATEGORIES, ranks, strict=True):
            if name in absent:
                column[absent[name]] = 0
        return Sample(integers, gaps, ranks)

    def _draw_absent(self, stream: Stream, rows: int) -> dict[str, np.ndarray]:
        absent = {}
        for group in self._missing:
            gone = stream.uniform(rows) < group.rate
            absent.update(dict.fromkeys(group.columns, gone))
        return absent
