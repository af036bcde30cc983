# SPDX-License-Identifier: Apache-2.0
"""Metrics of clicks, real values, classes and rankings, computed batch by batch.

- `clicks`, `regression`, `classes`: one label; `grouped`: clicks within each user's rows
- `auc`: probability that a click is scored above a row without one
- `means`: scores that are means
- `ranking`: ranks of a user's chosen items among all items or a list of candidates
- `scores`: which value of a score is better
"""

from sparsetrain.metrics.classes import ClassMetrics as ClassMetrics
from sparsetrain.metrics.clicks import ClickMetrics as ClickMetrics
from sparsetrain.metrics.grouped import GroupedAUC as GroupedAUC
from sparsetrain.metrics.ranking import RankingMetrics as RankingMetrics
from sparsetrain.metrics.ranking import rank_items as rank_items
from sparsetrain.metrics.regression import RegressionMetrics as RegressionMetrics
from sparsetrain.system.exports import public_names as _public_names

__all__, __dir__ = _public_names(globals())
