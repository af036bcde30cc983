# SPDX-License-Identifier: Apache-2.0
"""Synthetic Criteo: rows that look like the real ones, made from a seed, with a known best score.

`figures` (what Criteo's columns look like) -> `laws` (a uniform number becomes a value) -> `sample`
(rows as numbers) -> `effects` and `calibration` (what makes a click) -> `generator` (tables) ->
`writing` (files), `ceiling` (the best score).
"""

from sparsetrain.data.synthetic.ceiling import Truth as Truth
from sparsetrain.data.synthetic.generator import SyntheticCriteo as SyntheticCriteo
from sparsetrain.data.synthetic.writing import read_truth as read_truth
