# SPDX-License-Identifier: Apache-2.0
"""Kinds of labels as values, one file each: check, loss, prediction, scores, output names.

- `Binary`, `Real`, `Classes`, `Count`, `Quantiles`: the kinds; `Label`: the base class for your own
- `Labels`: a model's labels by name; `LabelMetrics`: their scores; `watched_names`: scores of all
  kinds
"""

from sparsetrain.labels.binary import Binary as Binary
from sparsetrain.labels.classes import Classes as Classes
from sparsetrain.labels.count import Count as Count
from sparsetrain.labels.count import DevianceMetrics as DevianceMetrics
from sparsetrain.labels.label import LABELS as LABELS
from sparsetrain.labels.label import Label as Label
from sparsetrain.labels.label import Labels as Labels
from sparsetrain.labels.label import label_of as label_of
from sparsetrain.labels.label_metrics import LabelMetrics as LabelMetrics
from sparsetrain.labels.label_metrics import watched_names as watched_names
from sparsetrain.labels.quantiles import PinballMetrics as PinballMetrics
from sparsetrain.labels.quantiles import Quantiles as Quantiles
from sparsetrain.labels.real import Real as Real
from sparsetrain.system.exports import public_names as _public_names

__all__, __dir__ = _public_names(globals())
