# SPDX-License-Identifier: Apache-2.0
"""Synthetic Criteo data: rows that resemble the real ones, from a seed, with a known best score.

`sample` draws values from statistics of Criteo's columns, `effects` determines clicks and the
best possible score, `generator` builds tables and files.
"""

from sparsetrain.data.synthetic.effects import Truth as Truth
from sparsetrain.data.synthetic.generator import SyntheticCriteo as SyntheticCriteo
from sparsetrain.data.synthetic.generator import read_truth as read_truth
