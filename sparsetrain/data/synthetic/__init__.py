# SPDX-License-Identifier: Apache-2.0
"""Synthetic Criteo: rows that look like the real ones, made from a seed, with a known best score.

`figures` (what Criteo's columns look like) -> `laws` (a uniform number becomes a value) -> `sample`
(rows as numbers) -> `effects` and `calibration` (what makes a click) -> `generator` (tables) ->
`writing` (files), `ceiling` (the best score).
"""

from .ceiling import Truth as Truth
from .generator import SyntheticCriteo as SyntheticCriteo
from .writing import read_truth as read_truth
