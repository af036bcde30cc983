# SPDX-License-Identifier: Apache-2.0
"""From Criteo-format data to batches: find the columns, learn an encoding, stream and shuffle.

Files come in layers, each using only those before it: `place`, `kinds`, `convert` (words and
gates); `batch` and `schema`; one file per kind of column (`dense`, `labels`, `vocabulary`,
`plain_ids`); `encoder`; `inputs` (what can be read); `dataset` (in which order).
"""

from .batch import Batch as Batch
from .dataset import Dataset as Dataset
from .encoder import Encoder as Encoder
from .inputs import open_source as open_source
from .ragged import Ragged as Ragged
from .schema import Columns as Columns
from .schema import find_columns as find_columns
from .source import BatchSource as BatchSource
from .source import Source as Source
from .synthetic import SyntheticCriteo as SyntheticCriteo
from .synthetic import Truth as Truth
from .synthetic import read_truth as read_truth
