# SPDX-License-Identifier: Apache-2.0
"""Synthetic Criteo data: rows that resemble the real ones, from a seed, with a known best score.

`sample` draws values from statistics of Criteo's columns, `effects` determines clicks, `generator`
builds tables, `write_file` stores them, `ceiling` computes the best possible score.
"""

from sparsetrain.data.synthetic.ceiling import Truth as Truth
from sparsetrain.data.synthetic.generator import SyntheticCriteo as SyntheticCriteo
from sparsetrain.data.synthetic.write_file import read_truth as read_truth
